"""A fitted model as files: JSON and safetensors. Loading runs nothing, and a file that was touched is refused.

    <path>/model/weights-<sha256>.safetensors    the weights
    <path>/model/model.json                      the network and its preprocessing; names the weights by hash
    <path>/columns.json                          the user's columns, and why each is used as it is
    <path>/metadata/part-00000                   class, uid and parameters as Spark ML keeps them, and the hashes of all; written last

A ``PipelineModel`` and a ``CrossValidatorModel`` find their stages by ``metadata``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pyspark
from pydantic import ValidationError
from pyspark.ml.util import DefaultParamsReader, MLReader, MLWriter

from sparkring.errors import ConfigError, DocumentDamaged
from sparkring.estimator.columns import InputColumn
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.documents import StrictModel, read_document
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.job.model_files import CARD, weights_name
from sparkring.spark_jobs.inference.choose import Choices
from sparkring.spark_jobs.scoring.predict import Model
from sparkring.spark_jobs.spark.versions.supported import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


METADATA, COLUMNS = "metadata/part-00000", "columns.json"
_REMEDY = "copy the model anew from where it was saved, or fit and save it again"


class ColumnsDocument(StrictModel):
    """``columns.json``."""

    columns: tuple[InputColumn, ...]
    choices: Choices
    run_url: str | None


class TorchModelWriter(MLWriter):
    """Writes a model; ``overwrite()`` replaces one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def save(self, path: str) -> None:
        """Write the model's files into a new folder.

        Raises:
            ConfigError: the folder holds something already.
        """
        model, store = self._model, open_store(_address(path, self.sparkSession))
        if next(iter(store.tree("")), None) is not None:
            if not self.shouldOverwrite:
                raise ConfigError(f"{path} exists already; give another path, or write().overwrite().save({path!r}).")
            for name in ("metadata", "model", COLUMNS):  # without its metadata it is a model no more
                store.delete(name)
        document = ColumnsDocument(columns=model.columns, choices=model.choices, run_url=model.run_url)
        card, columns = (made.model_dump_json(indent=1).encode() for made in (model.trained.card, document))
        store.put_pieces(weights_name(model.trained.card), [model.trained.weights])
        store.put(CARD, card)
        store.put(COLUMNS, columns)
        facts: dict[str, Any] = {
            "class": f"{type(model).__module__}.{type(model).__name__}", "uid": model.uid, "timestamp": round(time.time() * 1000),
            "sparkVersion": pyspark.__version__,
            "paramMap": {param.name: value for param, value in model._paramMap.items()},
            "defaultParamMap": {param.name: value for param, value in model._defaultParamMap.items()},
            "files": {CARD: _sha256(card), COLUMNS: _sha256(columns)}}
        store.put(METADATA, json.dumps(facts | {"sha256": _seal(facts)}).encode() + b"\n")


class TorchModelReader(MLReader[Any]):
    """Reads what ``TorchModelWriter`` wrote."""

    def __init__(self, make: Callable[..., Any]) -> None:
        super().__init__()
        self._make = make

    def load(self, path: str) -> Any:
        """Read a model.

        Raises:
            ConfigError: the folder holds no such model.
            DocumentDamaged, CheckpointDamaged: a file is not what was saved.
        """
        store = open_store(_address(path, self.sparkSession))
        metadata = _metadata(store, path)
        _require_hash(store, CARD, metadata["files"].get(CARD))
        document = _columns(store, metadata["files"].get(COLUMNS))
        model = self._make(trained=Model.of(store.url), columns=document.columns, choices=document.choices, run_url=document.run_url)
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model


def _metadata(store: Store, path: str) -> dict[str, Any]:
    try:
        found = read_document(store, METADATA, keys=("class", "uid", "paramMap", "defaultParamMap", "files", "sha256"), remedy=_REMEDY)
    except FileNotFoundError:
        raise ConfigError(f"{path} holds no model of sparkring's, since it has no {METADATA}; give a folder that TorchModel.save wrote."
                          ) from None
    seal = found.pop("sha256")
    if seal != _seal(found):
        raise DocumentDamaged(store.path(METADATA), found=f"SHA-256 {_seal(found)[:16]}", expected=seal[:16], remedy=_REMEDY)
    return found


def _columns(store: Store, digest: str | None) -> ColumnsDocument:
    try:
        return ColumnsDocument.model_validate_json(_require_hash(store, COLUMNS, digest))
    except ValidationError as error:
        raise DocumentDamaged(store.path(COLUMNS), found=error.errors()[0]["msg"], expected="columns", remedy=_REMEDY) from None


def _require_hash(store: Store, name: str, digest: str | None) -> bytes:
    try:
        data = store.read(name)
    except FileNotFoundError:
        raise DocumentDamaged(store.path(name), found="no such file", expected="the one that was saved", remedy=_REMEDY) from None
    if digest != _sha256(data):
        raise DocumentDamaged(store.path(name), found=f"SHA-256 {_sha256(data)[:16]}", expected=(digest or "none")[:16], remedy=_REMEDY)
    return data


def _address(path: str, spark: SparkSession) -> str:
    """The folder as Spark itself would take it: without a scheme it is on Spark's default file system."""
    if urlparse(path).scheme or is_connect(spark):
        return path
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    qualified = str(place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).makeQualified(place).toString())
    return qualified if urlparse(qualified).scheme != "file" else path


def _seal(facts: dict[str, Any]) -> str:
    return _sha256(json.dumps(facts, sort_keys=True).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
