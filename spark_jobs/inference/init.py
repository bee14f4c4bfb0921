"""``sparkring init``: look at a table and write a commented config for it.

    sparkring init orders.csv --label returned

One pass over the rows measures every column (inference/facts.py). What becomes of each, and why, is chosen by plain rules
(inference/choose.py). The result is a YAML file that every other command takes, and that a person may change.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from sparkring.conf.schema import SparkConfig
from sparkring.errors import ConfigError, SourceError, nearest
from sparkring.output_file import require_writable_file
from sparkring.spark_jobs.inference.choose import Choices, choose
from sparkring.spark_jobs.inference.facts import measure
from sparkring.spark_jobs.inference.sections import as_yaml, names_in_query
from sparkring.spark_jobs.inference.source import find_source
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.spark.session import result_settings, spark_session


@dataclass(frozen=True)
class InitResult:
    """The written config, and what was chosen."""

    path: str
    """The YAML file."""
    rows: int
    """Rows of the table."""
    choices: Choices


def init(table: str, *, label: str, output: str | Path | None = None, spark: SparkSession | None = None,
         progress: Progress = SILENT) -> InitResult:
    """Write a config for a table.

    Args:
        table: A path or URL of a CSV, Parquet, JSON or ORC file or folder, or a table that Spark knows.
        label: Its column to predict.
        output: The file to write; default ``<table>.yaml`` in the current folder.
        spark: The session to use; default the active one, or one on this machine.
        progress: Where to report.
    Raises:
        ConfigError: the file exists already, or cannot be written.
        SourceError: the table cannot be read, lacks the label, or has nothing to learn; nothing was written.
    """
    if output is not None:
        _require_free(Path(output))
    session = spark_session(SparkConfig(master="local[*]"), app_name="sparkring init", given=spark)
    with progress.stage("init", total=2) as bar, result_settings(session):
        bar.update(0, text="opening the table")
        found = find_source(session, table)
        target = Path(output) if output is not None else Path(f"{found.name}.yaml")
        _require_free(target)
        if label not in found.rows.columns:
            raise SourceError(f"{table} has no column {label}{nearest(label, found.rows.columns)}; it has {', '.join(found.rows.columns)}.")
        bar.update(1, text="measuring its columns")
        names = names_in_query(found.rows.columns)
        try:
            facts = measure(found.rows.toDF(*names.values()), label=names[label])
        except SPARK_ERRORS as error:
            raise SourceError(f"reading {table} fails: {reason(error)}; correct it: files of one folder have the same columns, and are "
                              "whole.") from None
        choices = choose(facts)
    source = found.source
    if "path" in source and Path(source["path"]).exists() and target.parent.resolve() != Path.cwd():
        source = source | {"path": str(Path(source["path"]).resolve())}  # a relative one begins at the folder of the YAML
    text = as_yaml(choices, name=found.name, source=source, names=names, workspace=f"runs/{found.name}")
    target.write_text(text, encoding="utf-8")
    return InitResult(str(target), facts.label.rows, choices)


def _require_free(target: Path) -> None:
    require_writable_file(target)
    if target.exists():
        raise ConfigError(f"{target} exists already; give another name with --output, or delete it.")
