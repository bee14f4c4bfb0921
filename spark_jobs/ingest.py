"""Ingest: the new rows of a growing source become dataset versions as they come, each row once.

    sparkring ingest my.yaml                          take what is there, then end: for a schedule
    sparkring ingest my.yaml --set ingest.every=1h    go on until it is stopped

Spark's Structured Streaming remembers, in ``<workspace>/ingest/<source>``, which files or offsets it has read. It gives them to us in
batches, and each batch is appended as one version, by one atomic commit. If a process dies between that commit and Spark's note of it,
Spark gives the same batch again; its rows are known by their ids then, so nothing is added twice.

Spark notes a batch before it gives it, and gives that one again until it is taken. So a first batch that is too small for a version, say
one without test rows, would never be got past. Therefore the first version is made of all files that are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import Config, SourceConfig, TableSource
from sparkring.errors import ConfigError, EnvironmentProblem, SourceError, nearest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.sources.literal_paths import literal
from sparkring.spark_jobs.etl.sources.tables import cache_of, locate, open_raw, reader_options
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.spark.session import spark_path, spark_session
from sparkring.spark_jobs.spark.versions.supported import is_connect

BATCH = "sparkring_ingested"
"""The view through which ``prepare`` sees a batch."""
LOOK_S = 0.5
STREAMED = ("csv", "parquet", "json", "orc")
"""Formats of files that Spark reads as a stream."""


@dataclass(frozen=True)
class IngestResult:
    """What one call has added."""

    versions: tuple[int, ...]
    """The dataset versions that it has committed."""
    rows: int
    """Rows of the latest version, over all splits; 0 if there is none yet."""


@dataclass
class _Batches:
    """What the callback of the stream has done, and the error that ended it."""

    versions: list[int] = field(default_factory=list)
    error: Exception | None = None


def ingest(config: ConfigLike, *, spark: SparkSession | None = None, progress: Progress = SILENT, stop: StopRequest | None = None,
           **keys: Any) -> IngestResult:
    """Append the new rows of a growing source to the dataset.

    Args:
        config: What ``load_config`` takes; ``ingest`` names the stream, ``prepare`` what becomes of its rows.
        spark: The session to use; default the active one, or one made from ``config.spark``.
        progress: Where to report.
        stop: Lets another thread, or a signal's handler, end a call that goes on; what was committed stays.
        keys: Keys of ``ingest`` or of the whole config that replace those of ``config``.
    Raises:
        ConfigError: there is no such source, or its kind cannot be read as a stream.
        ExpectationsNotMet, SourceError and others: as ``prepare`` raises them; the batch is given again by the next call.
        EnvironmentProblem: the session is Spark Connect's, whose server cannot call back.
    """
    config = config_of_job(ingest, config, keys, section="ingest")
    name = _source_of(config)
    session = spark_session(config.spark, app_name=f"sparkring {config.name}", given=spark)
    if is_connect(session):
        raise EnvironmentProblem("ingest needs a classic Spark session, since a server of Spark Connect cannot call back for each batch; "
                                 "use spark-submit, or a schedule of `sparkring prepare --append`.")
    done = _Batches()
    stream = _stream(session, config, name).writeStream.foreachBatch(_appending(config, name, done, progress))
    trigger = {"processingTime": _in_words(config.ingest.every)} if config.ingest.every else {"availableNow": True}
    checkpoint = spark_path(f"{config.workspace}/ingest/{name}")
    query = stream.option("checkpointLocation", checkpoint).trigger(**trigger).start()
    try:
        while not query.awaitTermination(LOOK_S):  # type: ignore[arg-type]  # pyspark says int, and takes fractions
            if stop is not None and stop.asked:
                progress.note(f"ingest: stopped as asked ({stop.reason}); the next call goes on")
                break
    except SPARK_ERRORS as error:
        if done.error is not None:
            raise done.error from None
        raise SourceError(f"source {name}: reading it as a stream fails: {reason(error)}; correct ingest or "
                          f"prepare.sources.{name}.") from None
    finally:
        query.stop()
    dataset = Dataset(config.dataset)
    rows = sum(split.rows for split in dataset.manifest().splits.values()) if dataset.versions() else 0
    return IngestResult(tuple(done.versions), rows)


def _appending(config: Config, name: str, done: _Batches, progress: Progress) -> Callable[[DataFrame, int], None]:
    """The callback of the stream."""
    def append(batch: DataFrame, number: int) -> None:
        try:
            if batch.isEmpty():
                return
            dataset = Dataset(config.dataset)
            known = dataset.versions()
            rows = batch if known or config.ingest.format else _files(batch.sparkSession.read, config, name, batch.schema)
            rows.createOrReplaceTempView(BATCH)
            source = TableSource(format="table", table=BATCH, columns=config.prepare.sources[name].columns)
            sources = {**config.prepare.sources, name: source}
            result = prepare(config.changed(prepare=config.prepare.changed(sources=sources)), append=bool(known), spark=batch.sparkSession,
                             progress=progress)
            if not result.reused:
                if not done.versions and dataset.manifest().row_id_of:
                    progress.note("ingest: row ids are made of each row's content, so an exact copy of a row of an earlier batch is "
                                  "not added; set prepare.row_id to keep both")
                done.versions.append(result.version)
                progress.note(f"ingest: batch {number} is dataset version {result.version}")
        except Exception as error:
            done.error = error  # Spark keeps its text only
            raise
    return append


def _stream(session: SparkSession, config: Config, name: str) -> DataFrame:
    """The source as a stream, its columns as ``prepare`` reads them from files: those of a CSV are texts."""
    try:
        if config.ingest.format is not None:
            return session.readStream.format(config.ingest.format).options(**config.ingest.options).load()
        return _files(session.readStream, config, name, _schema(session, config, name))
    except SPARK_ERRORS as error:
        raise SourceError(f"source {name}: Spark cannot read it as a stream: {reason(error)}; correct ingest, or "
                          f"prepare.sources.{name}.") from None


def _files(reader: DataStreamReader | DataFrameReader, config: Config, name: str, schema: StructType) -> DataFrame:
    """The source's files, as a stream or all at once."""
    source = config.prepare.sources[name]
    assert isinstance(source, SourceConfig)
    located = locate(name, source)
    path = source.path if located.local is None else literal(spark_path(str(located.local)))
    return reader.format(source.format).schema(schema).options(**reader_options(source), **config.ingest.options).load(path)


def _schema(session: SparkSession, config: Config, name: str) -> StructType:
    """That of the files that are there: a stream asks for it before it reads any."""
    source = config.prepare.sources[name]
    assert isinstance(source, SourceConfig)
    frame, _ = open_raw(session, locate(name, source), cache=cache_of(config))
    return frame.schema


def _source_of(config: Config) -> str:
    sources, given = config.prepare.sources, config.ingest.source
    if given is None and len(sources) > 1:
        raise ConfigError(f"ingest.source is not set, and the config has the sources {', '.join(sources)}; name the one that grows.")
    name = given or next(iter(sources))
    if name not in sources:
        raise ConfigError(f"ingest.source={name} is none of prepare.sources{nearest(name, sources)}; it has {', '.join(sources)}.")
    source = sources[name]
    if config.ingest.format is None and not (isinstance(source, SourceConfig) and source.format in STREAMED):
        raise ConfigError(f"source {name} is of format {source.format}, which is not read as a stream; ingest files of "
                          f"{', '.join(STREAMED)}, or name Spark's format of the stream in ingest.format.")
    return name


def _in_words(age: str) -> str:
    """An age as Spark's interval."""
    units = {"h": "hours", "d": "days", "w": "weeks"}
    return f"{age[:-1]} {units[age[-1]]}"
