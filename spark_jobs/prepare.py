"""From source tables to a committed dataset version: read, join, check, split by time, fit on train, encode, shuffle, write.

    sparkring prepare local/flights
    sparkring prepare local/flights --append     # the rows that the latest version does not hold yet

The last step writes the manifest and makes the version visible. An error before it leaves the dataset as it was and removes what
was written. If the config, the source bytes and the code are those of the latest version, that version is reused.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import TEXT_TASKS, Config, PrepareConfig
from sparkring.errors import SourceError
from sparkring.models.inputs import TOKENS
from sparkring.pipelines.data.dataset.commit import commit_version
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split, content_id
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.writable import require_writable
from sparkring.spark_jobs.etl.append import appendable, joined_splits, known_rows, require_same_columns
from sparkring.spark_jobs.etl.changes import count_changed
from sparkring.spark_jobs.etl.columns.splits import split_names
from sparkring.spark_jobs.etl.encoded_rows import FALLS_IN, EncodedRows, require_held_out
from sparkring.spark_jobs.etl.encoding.describe import describe
from sparkring.spark_jobs.etl.encoding.tokens import TokenEncoding
from sparkring.spark_jobs.etl.examples import Query, run_query, tables
from sparkring.spark_jobs.etl.expectations import check_expectations
from sparkring.spark_jobs.etl.fitted import Fitted, fitted_examples, new_examples, new_texts
from sparkring.spark_jobs.etl.rolling import at_borders, held_out_again
from sparkring.spark_jobs.etl.sources.committed_files import naming_damaged_pages
from sparkring.spark_jobs.etl.sources.first_look import located
from sparkring.spark_jobs.etl.sources.tables import Source, at_latest_version, cache_of, identify, open_tables
from sparkring.spark_jobs.etl.writing.document_list import kept_encoding, without_known, write_documents
from sparkring.spark_jobs.etl.writing.write_dataset import read_back, split_layouts, write_split
from sparkring.spark_jobs.scoring.columns import require_free, require_free_features, split_columns
from sparkring.spark_jobs.spark.errors import failed_queries_unlogged
from sparkring.spark_jobs.spark.progress import SILENT, Bar, Progress
from sparkring.spark_jobs.spark.session import result_settings, spark_session
from sparkring.version import __version__

RECIPE_FORMAT = 4
"""Raise it when the same config and source give a different dataset than before. 4: paths of files whose bytes are hashed no longer count.

A recipe id covers every key of ``prepare``, also those at their defaults, so that a default that changes is noticed. A new key therefore
changes all ids, and each dataset is prepared once more."""


@dataclass(frozen=True)
class PrepareResult:
    """A committed dataset version."""

    url: str
    """The dataset."""
    version: int
    reused: bool
    """The latest version has the same recipe; nothing was done."""
    rows: dict[str, int]
    """Rows of each split."""
    seconds: float
    changed_rows: int = 0
    """Rows that an append kept as they were, although the source now has other contents for their ids."""


def prepare(config: ConfigLike, *, append: bool = False, spark: SparkSession | None = None, progress: Progress = SILENT,
            **keys: Any) -> PrepareResult:
    """Commit a dataset version, or reuse the latest one if this config and source would give the same.

    Args:
        config: What ``load_config`` takes. Its ``prepare`` defines sources and encoding; its ``workspace`` or ``dataset_url`` is the
            place of the commit.
        append: Keep the latest version's files and add the rows of the query whose ids it lacks, encoded with its statistics and
            vocabularies. For texts, add rows cut with its tokenizer from the documents whose names it lacks.
        spark: The session to use; default the active one, or one made from ``config.spark`` when it is needed.
        progress: Where to report.
        keys: Keys of ``prepare`` or of the whole config that replace those of ``config``, e.g. ``label="late"``.
    Returns:
        The version and its row counts.
    Raises:
        SourceError: the source lacks something, contradicts the config, or gives different rows each time.
        ConfigError: the query cannot run, or a name in the config cannot be used.
        ExpectationsNotMet: the rows break ``prepare.expectations``.
        CommitConflict: another writer committed the same version number meanwhile.
        StorageError: the dataset's folder cannot be written; no data was read.
        EnvironmentProblem: the dataset's store cannot refuse a second writer.
    """
    began = time.perf_counter()
    config = config_of_job(prepare, config, keys, section="prepare")
    # Else the version could be trained on, but not scored.
    require_free((config.prepare.id_column, config.prepare.label), split_columns(config.prepare.task))
    dataset = Dataset(config.dataset, one_writer=config.dataset_one_writer)

    @cache
    def session() -> SparkSession:
        return spark_session(config.spark, app_name=f"sparkring {config.name}", given=spark)

    latest = max(dataset.versions(), default=None)  # the parent; a version that is committed meanwhile is a conflict
    if latest is None:
        _require_commits(dataset)  # before any data is read; with versions, the latest may be reused
    sources = [at_latest_version(source, session) for source in located(config.prepare.sources)]
    facts = {source.name: identify(source, session) for source in sources}
    parent = appendable(dataset, config.prepare) if append else None
    recipe_id = _recipe_id(config.prepare, facts, parent)
    manifest = _same_recipe(dataset, recipe_id) or _unchanged(dataset, parent, config.prepare, facts)
    reused, changed = manifest is not None, 0
    if manifest is None:
        _require_commits(dataset)
        job = _PrepareJob(config, dataset, sources, facts, recipe_id, parent, latest)
        kept = parent.files if parent else ()
        phases = len(sources) + 2 + len(split_names(config.prepare))
        with progress.stage("prepare", total=phases) as bar, naming_damaged_pages(dataset.store, kept):
            manifest, changed = job.run(session(), _Phases(bar))
        if parent is not None and changed:
            progress.note(f"prepare: {changed:,} rows of known ids have other contents; they are kept as they are in version "
                          f"{parent.version}; prepare without --append to take them")
        if parent is not None and manifest is parent:
            reused = True
            progress.note(f"prepare: version {parent.version} holds all rows of this source; nothing to append")
        if parent is None:
            _tell_left_out(manifest, progress)
    else:
        progress.note(f"prepare: version {manifest.version} was made from this source by this config; reusing {dataset.url}")
    return PrepareResult(url=dataset.url, version=manifest.version, reused=reused, seconds=time.perf_counter() - began,
                         changed_rows=changed, rows={name: split.rows for name, split in manifest.splits.items()})


def _tell_left_out(manifest: Manifest, progress: Progress) -> None:
    """Say that a first version has fewer rows than its single source; to count the label's nulls would take the query once more."""
    examples = sum(split.rows for split in manifest.splits.values())
    if len(manifest.source) != 1 or manifest.task in TEXT_TASKS:
        return
    ((name, facts),) = manifest.source.items()
    if examples < facts["rows"]:
        progress.note(f"prepare: {name} has {facts['rows']:,} rows, the dataset {examples:,}: the query yields fewer, or "
                      f"{manifest.label} is null in some")


@dataclass(frozen=True)
class _Written:
    """Files of a version before its commit."""

    splits: dict[str, Split]
    documents: tuple[DataFile, ...] = ()
    """Lists of the documents behind the rows of a text dataset."""


class _Phases:
    """Moves a bar from phase to phase and names each."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._done = 0

    def begin(self, text: str) -> None:
        """End the phase before and begin this one."""
        self._bar.update(self._done, text=text)
        self._done += 1


@dataclass(frozen=True)
class _PrepareJob:
    """One preparation, from checked sources to the commit."""

    config: Config
    dataset: Dataset
    sources: list[Source]
    facts: dict[str, dict[str, Any]]
    recipe_id: str
    parent: Manifest | None
    """The version to append to."""
    latest: int | None
    """The latest version when the job began."""

    def run(self, spark: SparkSession, phases: _Phases) -> tuple[Manifest, int]:
        """Do everything and commit; returns the version, and the number of rows that have changed since the parent."""
        with result_settings(spark), failed_queries_unlogged():
            opened = open_tables(spark, self.sources, cache=cache_of(self.config))
            with tables(spark, {table.source.name: table.frame for table in opened}):
                query = run_query(spark, self.config.prepare)  # its columns are checked before the values of any row
                require_free_features(query.config)
                for table in opened:
                    phases.begin(f"reading {table.source.name}")
                    checked = self._checked_before(table.source.name)
                    self.facts[table.source.name]["rows"] = table.count_checked() if checked is None else checked
                with self._examples(query, phases) as fitted:
                    changed = self._count_changed(query, fitted, phases)
                    if self.parent and fitted.examples.isEmpty():
                        return self.parent, changed
                    check_expectations(fitted.examples, query.config, split=fitted.split, dataset=self.dataset)
                    manifest = commit_version(self.dataset, lambda folder: self._write(query, fitted, folder, phases),
                                              lambda data_id, written: self._manifest(query, fitted, written, data_id))
                    return manifest, changed

    def _checked_before(self, name: str) -> int | None:
        """The rows of a source whose values the parent's preparation has checked, for it had these bytes and columns then, too."""
        parent, config = self.parent, self.config.prepare.sources[name].model_dump(mode="json")
        if parent is None or parent.recipe["sources"].get(name) != config or not _same_bytes(parent, name, self.facts[name]):
            return None
        rows: int = parent.source[name]["rows"]
        return rows

    def _examples(self, query: Query, phases: _Phases) -> AbstractContextManager[Fitted]:
        parent, dataset = self.parent, self.dataset
        if parent is None:
            return fitted_examples(query, phases.begin)
        tokens = query.config.features.tokens
        if tokens:
            return new_texts(query, parent.preprocessing, kept_encoding(dataset, parent),
                             lambda documents: without_known(documents, dataset, parent, column=tokens.document), phases.begin)
        require_same_columns(query, parent)
        known = known_rows(query.rows.sparkSession, dataset, parent)
        return new_examples(query, parent, known, phases.begin)

    def _count_changed(self, query: Query, fitted: Fitted, phases: _Phases) -> int:
        if self.parent is None or fitted.known is None:
            return 0
        phases.begin("comparing known rows")
        then = replace(query, rows=fitted.known, config=at_borders(query.config, self.parent.rolling))
        return count_changed(then, self.dataset, self.parent)

    def _write(self, query: Query, fitted: Fitted, folder: str, phases: _Phases) -> _Written:
        """Write every split that has rows, and the files beside them, into the new ``folder`` of the store."""
        config = query.config
        fields, tensors = describe(config, fitted.preprocessing)
        again = self._held_out_again(fitted)
        rows = EncodedRows(fitted, fields, again)
        layouts = split_layouts(rows.counted, config, tensors, split=rows.split, made=bool(query.row_id_of))
        if fitted.rolling is not None:
            require_held_out(layouts, fitted.rolling)
        store, splits = self.dataset.store, {}
        for name, content in fitted.files.items():
            store.put(f"{folder}/{name}", content)
        for name in (name for name in split_names(config) if name in layouts):
            phases.begin(f"writing {name}")
            write_split(rows.of(name), store, f"{folder}/{name}", fields=fields, layout=layouts[name],
                        seed=config.seed if config.shuffle else None)
            splits[name] = read_back(store, f"{folder}/{name}", fields)
            if splits[name].rows != layouts[name].rows:
                raise SourceError(f"the {name} split has {splits[name].rows} rows as written and {layouts[name].rows} as "
                                  "counted: prepare.query gives different rows each time, as with rand() or a LIMIT without an order; "
                                  "choose rows by their ids.")
        tokens = config.features.tokens
        if tokens is None or fitted.documents is None:
            return _Written(splits)
        return _Written(splits, write_documents(fitted.documents, store, folder, column=tokens.document))

    def _held_out_again(self, fitted: Fitted) -> DataFrame | None:
        """The parent's held-out rows, if a rolling split deals them anew."""
        if self.parent is None or fitted.rolling is None:
            return None
        return held_out_again(fitted.examples.sparkSession, self.dataset, self.parent, fitted.rolling, split=FALLS_IN)

    def _manifest(self, query: Query, fitted: Fitted, written: _Written, data_id: str) -> Manifest:
        config, parent, preprocessing = self.config.prepare, self.parent, fitted.preprocessing
        fields, tensors = describe(config, preprocessing)
        splits = joined_splits(parent, written.splits) if parent else written.splits
        classes = preprocessing.tokens.vocabulary if preprocessing.tokens else 2 if config.task == "binary" else len(preprocessing.classes)
        return Manifest(
            version=(self.latest or 0) + 1, parent=self.latest, data_id=data_id, content_id=content_id(fields, splits),
            recipe_id=self.recipe_id, created_at=datetime.now(UTC).isoformat(timespec="seconds"), code_version=__version__,
            row_id=config.id_column, row_id_of=query.row_id_of, label=config.label or TOKENS, weight=config.weight, task=config.task,
            classes=classes,
            fields=fields, tensors=tensors, splits=splits, rolling=fitted.rolling,
            documents=(*(parent.documents if parent else ()), *written.documents),
            preprocessing=preprocessing, folds=fitted.folds, recipe=config.model_dump(mode="json"), source=self.facts,
            parent_sha256=None if self.latest is None else self.dataset.manifest_sha256(self.latest))


def _require_commits(dataset: Dataset) -> None:
    """Check that a version could be committed: the store refuses a second writer, and takes files."""
    dataset.store.check_commits()
    require_writable(dataset.store, what="dataset")


def _recipe_id(config: PrepareConfig, facts: dict[str, dict[str, Any]], parent: Manifest | None) -> str:
    """The identity of what a preparation gives. What the hash of its bytes identifies may lie anywhere: its path is no part of it."""
    hashed = {name: {"path"} if "sha256" in found else set() for name, found in facts.items()}
    prepare = config.model_dump(mode="json", exclude={"sources": hashed, "features": {"tokens": {"tokenizer"}}})
    source = {name: {key: value for key, value in found.items() if key not in hashed[name]} for name, found in facts.items()}
    document: dict[str, Any] = {"format": RECIPE_FORMAT, "prepare": prepare, "source": source}
    if parent is not None:
        document["appended_to"] = parent.content_id
    if config.features.tokens is not None:
        kept = parent.preprocessing.tokens if parent else None
        document["tokenizer_sha256"] = kept.tokenizer_sha256 if kept else TokenEncoding.load(config.features.tokens).sha256
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _same_recipe(dataset: Dataset, recipe_id: str) -> Manifest | None:
    """The latest version, if it has this recipe and all its files exist with their sizes."""
    if not dataset.versions():
        return None
    manifest = dataset.manifest()
    return manifest if manifest.recipe_id == recipe_id and _complete(dataset, manifest) else None


def _unchanged(dataset: Dataset, parent: Manifest | None, config: PrepareConfig, facts: dict[str, dict[str, Any]]) -> Manifest | None:
    """The version to append to, if this config has read the very bytes for it that its sources have now."""
    if parent is None or parent.recipe != config.model_dump(mode="json"):
        return None
    same = parent.source.keys() == facts.keys() and all(_same_bytes(parent, name, found) for name, found in facts.items())
    return parent if same and _complete(dataset, parent) else None


def _same_bytes(parent: Manifest, name: str, facts: dict[str, Any]) -> bool:
    """Whether a version was made from what a source is now."""
    return {key: value for key, value in parent.source.get(name, {}).items() if key != "rows"} == facts


def _complete(dataset: Dataset, manifest: Manifest) -> bool:
    return all(dataset.store.size(file.path) == file.bytes for file in manifest.files)
