"""The Spark session (``spark``) and batch predictions (``score``)."""

from __future__ import annotations

import re
from datetime import date
from typing import Literal

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from sparkring.conf.schema.base.section import LOGIN, SECRET, Positive, Section

_NAME = r"(secret|passw|passphrase|token(?!iz)|(access|account|private|shared|api)[._-]?key)"
_WHERE = "(file|path|provider|length|bits|class|enabled)"
_SECRET_PROPERTY = re.compile(rf"({_NAME}|(pass|pwd)$)(?!.*{_WHERE}$)", re.IGNORECASE)
"""Spark and Hadoop properties whose value is a secret, and not the place of one."""
_SECRET_VALUE = re.compile(rf"({_NAME}|pwd|\bpass(?=\s*=))(?![\w.-]*{_WHERE}\s*=)[\w.-]*\s*=\s*[^\s;&]|jdbc:\S*:[^/:@\s]+/[^/@\s]+@",
                           re.IGNORECASE)
"""Values with a secret in them, such as a JVM's -Dtrust.storePassword=... or an address of a database."""


class ScoreConfig(Section):
    """Batch predictions on Spark."""

    split: Literal["train", "validation", "test"] = "test"
    """Split of the dataset version to score."""
    batch_rows: Positive = 8192
    """The most rows of one forward pass."""
    engine: Literal["torch", "onnx"] = "torch"
    """What computes the predictions: torch, or ONNX Runtime with the file that ``sparkring export`` wrote into the run's folder."""
    top_k: Positive | None = None
    """For several classes: also add the column ``top_k``, the so many likeliest classes with their probabilities."""


class SparkConfig(Section):
    """The Spark session that a job starts if none is running."""

    master: str | None = None
    """E.g. ``local[2]``, ``yarn``, ``spark://host:7077``; null: spark-submit or the notebook decides."""
    remote: str | None = None
    """A Spark Connect address, e.g. ``sc://host:15002``, instead of a master."""
    conf: dict[str, str] = {}
    """Spark properties, e.g. ``{spark.executor.memory: 4g}``."""

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, conf: object) -> object:
        """Spark takes texts; YAML may give ``true``, ``4`` or ``2024-01-01``."""
        if not isinstance(conf, dict):
            return conf
        return {key: str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int | float | date) else value
                for key, value in conf.items()}

    @field_validator("conf")
    @classmethod
    def _no_secret_inside(cls, conf: dict[str, str]) -> dict[str, str]:
        """Spark starts its JVM with these on the command line, which every user of the machine can read."""
        secrets = [key for key, value in conf.items()
                   if _SECRET_PROPERTY.search(key) or _SECRET_VALUE.search(value) or LOGIN.search(value)]
        if secrets:
            raise PydanticCustomError(SECRET, "a config holds no secret, and {key} would stand in the process list of this machine; "
                                      "put it into spark-defaults.conf (SPARK_CONF_DIR) or a credential provider of Hadoop "
                                      "(the value is not shown)", {"key": ", ".join(secrets)})
        return conf
