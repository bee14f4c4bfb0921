"""Tracking of runs with MLflow (``tracking``)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from sparkring.conf.schema.base.section import LOGIN, SECRET, Section


class TrackingConfig(Section):
    """Where ``train`` sends what a run does. Training never fails or waits because of it (docs/how-to/tracking.md)."""

    mlflow_uri: Annotated[str, Field(min_length=1)] | None = None
    """The MLflow server, e.g. ``http://mlflow.example.org:5000`` or ``databricks``; null: MLflow's own setting,
    ``MLFLOW_TRACKING_URI`` or the Databricks workspace. User and password come from MLflow's environment variables."""
    experiment: Annotated[str, Field(min_length=1, max_length=250)] | None = None
    """MLflow's experiment; created if there is none. Default: the config's name."""
    registered_model: Annotated[str, Field(pattern=r"^[^'\"/:]{1,250}$")] | None = None
    """Name in MLflow's registry; each trained model becomes a version of it. Null: nothing is registered."""
    finish_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """Most seconds for which a command that is done waits until everything is sent; ``sparkring track`` sends the
    rest."""

    @field_validator("mlflow_uri")
    @classmethod
    def _no_secret_inside(cls, uri: str | None) -> str | None:
        if uri is not None and LOGIN.search(uri):
            raise PydanticCustomError(SECRET, "a config holds no password; leave user and password out of the address and set "
                                      "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (the address is not shown)")
        return uri
