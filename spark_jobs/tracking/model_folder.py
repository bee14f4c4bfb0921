"""The folder that MLflow gets as a run's model: a pyfunc with a signature for tables, else our card and weights alone.

    MLmodel, requirements.txt, ...    MLflow's files (only of a pyfunc)
    data/model/model.json             our card
    data/model/weights-*.safetensors  our weights
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkring.pipelines.training.job.model_files import CARD, ModelCard, load_weights, weights_name
from sparkring.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature

LOADER = "sparkring.spark_jobs.tracking.pyfunc_model"
TASKS = ("binary", "multiclass", "regression")
"""Tasks whose raw rows a pyfunc takes."""
_ANY_MOMENT = "2020-01-01"


def write_model_folder(run_url: str, card: ModelCard, folder: Path) -> Path:
    """Write the model of a run for MLflow.

    Args:
        run_url: The run.
        card: Its model's card.
        folder: An empty local folder.
    Returns:
        The folder to upload.
    """
    data = folder / "data"
    (data / "model").mkdir(parents=True)
    (data / CARD).write_text(card.model_dump_json(indent=1), encoding="utf-8")
    (data / weights_name(card)).write_bytes(load_weights(run_url, card))
    types = input_types(card)
    if types is None:
        return folder
    import mlflow.pyfunc
    import torch

    hashed = ["xxhash"] if card.preprocessing.hashed else []
    needs = [f"sparkring=={__version__}", f"torch=={torch.__version__.partition('+')[0]}", "pandas", *hashed]
    with _quiet():
        mlflow.pyfunc.save_model(str(folder / "pyfunc"), loader_module=LOADER, data_path=str(data), signature=signature_of(card, types),
                                 input_example=example_of(card), pip_requirements=needs)
    return folder / "pyfunc"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow from logging each step of writing a model."""
    logger = logging.getLogger("mlflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def input_types(card: ModelCard) -> dict[str, str] | None:
    """Raw column -> MLflow's type, of a model that can be a pyfunc; else None.

    A pyfunc takes rows of tables. A column that is used both as a number and as text has no single type in MLflow.
    """
    if card.model.kind != "tabular" or card.task not in TASKS:
        return None
    found: dict[str, str] = {}
    features = card.preprocessing
    for feature in (*features.numeric, *features.categorical):
        kind = "datetime" if feature.moment else "double" if feature in features.numeric else "string"
        if found.setdefault(feature.source, kind) != kind:
            return None
    for name, kind in (*((each.of, "double") for each in features.buckets), *((each.of, "string") for each in features.hashed)):
        if found.setdefault(name, kind) != kind:
            return None
    return found


def signature_of(card: ModelCard, types: dict[str, str]) -> ModelSignature:
    """Raw columns in, predictions out."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import Array, DataType

    kind = {"string": "string", "bigint": "long"}.get(card.preprocessing.class_type, "integer")
    outputs: dict[str, list[Any]] = {
        "binary": [ColSpec("integer", "prediction"), ColSpec("double", "probability")],
        "regression": [ColSpec("double", "prediction")],
        "multiclass": [ColSpec(kind, "prediction"), ColSpec("double", "probability"), ColSpec(Array(DataType.double), "probabilities")]}
    return ModelSignature(inputs=Schema([ColSpec(kind, name) for name, kind in types.items()]), outputs=Schema(outputs[card.task]))


def example_of(card: ModelCard) -> pd.DataFrame:
    """One row of typical values, from the fitted figures."""
    import pandas as pd

    features, row = card.preprocessing, dict[str, Any]()
    for number in features.numeric:
        row[number.source] = pd.Timestamp(_ANY_MOMENT) if number.moment else number.filled_with
    for category in features.categorical:
        row[category.source] = pd.Timestamp(_ANY_MOMENT) if category.moment else next(iter(category.vocabulary), "")
    row |= {each.of: each.edges[0] if each.edges else 0.0 for each in features.buckets if each.of not in row}
    row |= {each.of: "text" for each in features.hashed if each.of not in row}
    return pd.DataFrame([row])
