"""The encoded rows of a dataset version's split that a model is to score or to be evaluated on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import FloatType, StructField, StructType

from sparkring.errors import DatasetChanged, DatasetError
from sparkring.pipelines.data.dataset.folds import of_fold
from sparkring.pipelines.data.dataset.integrity import check_footers
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField
from sparkring.pipelines.data.dataset.stored_columns import Change, Scaling, changes
from sparkring.pipelines.data.dataset.versions import BRING_BACK, Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.etl.sources.committed_files import read_committed


def trained_on(card: ModelCard) -> Manifest:
    """The manifest of the dataset version that a model was trained on.

    Raises:
        DatasetVersionNotFound: it is gone.
        DatasetError: the version has different content now.
    """
    manifest = Dataset(card.dataset_url).manifest(card.dataset_version, fold=card.fold, moved=BRING_BACK)
    if manifest.content_id != card.content_id:
        raise DatasetError(f"version {card.dataset_version} of {card.dataset_url} holds {manifest.content_id[:16]}, but the model was "
                           f"trained on {card.content_id[:16]}; train again, or bring that dataset back.")
    return manifest


def version_for(card: ModelCard, version: int | None) -> Manifest:
    """The manifest of a version whose rows the model can read.

    Args:
        card: The model.
        version: The config's ``dataset_version``; None for the version that the model was trained on.
    Raises:
        DatasetVersionNotFound: there is no such version.
        DatasetError: its rows were encoded in another way than the model's train rows, or it is not what the model was trained on; or it
            has no such fold as the model's.
    """
    if version in (None, card.dataset_version):
        return trained_on(card)
    manifest = Dataset(card.dataset_url).manifest(version, moved=BRING_BACK)
    if card.fold is not None:
        if card.fold >= len(manifest.folds):
            raise DatasetError(f"version {version} of {card.dataset_url} has {len(manifest.folds) or 'no'} folds, and the model is that of "
                               f"fold {card.fold} of version {card.dataset_version}, counted from 0; score its source with --input, or "
                               "name a version that `sparkring prepare --append` made.")
        manifest = of_fold(manifest, card.fold, url=card.dataset_url)
    if _figures(manifest.preprocessing) != _figures(card.preprocessing):
        raise DatasetError(f"version {version} of {card.dataset_url} was encoded with other figures than version {card.dataset_version}, "
                           "on which the model was trained; score its source with --input, or train on it. Versions of `sparkring "
                           "prepare --append` keep the figures.")
    return manifest


def _figures(preprocessing: Preprocessing) -> dict[str, Any]:
    """What decides how a row is encoded, without counts of rows and tokens."""
    return preprocessing.model_dump(exclude={"train_rows": True, "tokens": {"tokens", "text_bytes", "packs"}})


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split: files that were found to be those that the manifest names."""

    dataset_url: str
    files: tuple[DataFile, ...]
    fields: tuple[DataField, ...]
    """The columns of the files."""
    changes: Mapping[str, Change] = field(default_factory=dict)
    """What makes of a column of the files the one that the network takes; empty but for a version in folds."""

    @classmethod
    def of(cls, manifest: Manifest, dataset_url: str, split: str) -> SplitRows:
        """Check the files of a split.

        Raises:
            DatasetError: there is no such split.
            DatasetChanged: a file has a different size or footer; it is named. Training makes the same check before its first step.
        """
        store, files = open_store(dataset_url), split_of(manifest, dataset_url, split).files
        findings = check_footers(store, manifest, files)
        if findings:
            raise DatasetChanged(store.url, version=manifest.version, findings=list(map(str, findings)))
        return cls(dataset_url, files, manifest.fields, changes(manifest.stored, manifest.preprocessing))

    def some(self, names: Collection[str]) -> SplitRows:
        """The rows of some files."""
        return replace(self, files=tuple(file for file in self.files if file.path in names))

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows as the network takes them, read by Spark.

        Raises:
            EnvironmentProblem, StorageError: Spark cannot read them.
        """
        frame = read_committed(spark, open_store(self.dataset_url), self.files)
        if not self.changes:
            return frame
        types = {field.name: FloatType() if isinstance(self.changes.get(field.name), Scaling) else field.dataType for field in frame.schema}
        schema = StructType([StructField(name, kind) for name, kind in types.items()])
        return frame.mapInArrow(partial(_changed, changes=self.changes, schema=to_arrow_schema(schema)), schema)


def _changed(batches: Iterable[pa.RecordBatch], changes: Mapping[str, Change], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows with the changes made, in a Python worker of Spark."""
    for batch in batches:
        columns = [pa.array(changes[name](column.to_numpy(zero_copy_only=False))) if name in changes else column
                   for name, column in zip(batch.schema.names, batch.columns, strict=True)]
        yield pa.RecordBatch.from_arrays([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)


def split_of(manifest: Manifest, dataset_url: str, split: str) -> Split:
    """A split by its name.

    Raises:
        DatasetError: there is none.
    """
    if split not in manifest.splits:
        raise DatasetError(f"version {manifest.version} of {dataset_url} has no split {split!r}; it has {', '.join(manifest.splits)}.")
    return manifest.splits[split]
