"""Write scores portion by portion: a job that is cut off and run again scores only the input files that are left.

    scores/_<folder>/<folder>/part-*.parquet    a draft, as in ``latest.py``
    scores/_<folder>/done.json                  its finished portions: the input files of each, and the files that it wrote

    1. Spark scores the input files of a portion into files of the draft    cut off here: the next run deletes files that are not listed
    2. ``done.json`` lists them: the portion is finished

The folder is named by what is scored (``key_of``), so that the same job finds its draft again. A first portion of ``FIRST_MB`` holds all
that small jobs have. As long as portions take less than half a minute, the next one is twice as large: the jobs of Spark that they cost
are no noticeable part of the work, and a cut costs about a minute of it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.errors import NotFinite
from sparkring.pipelines.data.order.rowhash import add, from_hex, rows_digest, to_hex
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.documents import StrictModel, read_model
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.sources.literal_paths import literal
from sparkring.spark_jobs.etl.writing.staging import writing_area
from sparkring.spark_jobs.scoring.latest import delete_draft, draft_of
from sparkring.spark_jobs.spark.session import spark_path

FIRST_MB = 256.0
"""Input of the first portion, as stored."""
SHORT_S = 30.0
"""Seconds below which a portion is short: the next one is twice as large."""

Read = TypeVar("Read")


class Input(NamedTuple):
    """A file to score."""

    name: str
    bytes: int


class Portion(StrictModel):
    """A finished portion."""

    inputs: tuple[str, ...]
    """Names of the files that were scored; none if the rows are no files'."""
    files: tuple[str, ...]
    """The files that it wrote, relative to the scores' folder."""
    rows: int
    digest: str
    """Of the row ids, as a manifest has it; of none for new rows."""


class _Done(StrictModel):
    portions: tuple[Portion, ...]


def key_of(identity: dict[str, Any]) -> str:
    """The name of the folder for scores of this identity: the model, the rows and the settings."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


class Draft:
    """The scores that a job is writing."""

    def __init__(self, store: Store, folder: str, *, telling: str, row_id: str | None, digested: bool) -> None:
        """Find the draft, or begin it.

        Args:
            store: The scores' folder.
            folder: The name that the scores will have there.
            telling: The column that is finite if the network's answer is.
            row_id: The column that names a row in errors; None if there is none.
            digested: Whether to digest the ids.
        """
        self._store, self._folder, self._telling, self._row_id, self._digested = store, folder, telling, row_id, digested
        self._document = f"_{folder}/done.json"
        self.portions = self._found()

    @property
    def rows(self) -> int:
        """Rows that are written."""
        return sum(portion.rows for portion in self.portions)

    @property
    def digest(self) -> str:
        """The digest of their ids."""
        return to_hex(add(from_hex(portion.digest) for portion in self.portions))

    def write(self, inputs: Sequence[Input], scored: Callable[[Sequence[str]], DataFrame], *,
              report: Callable[[int], None] = lambda _: None) -> None:
        """Score what is left of ``inputs``.

        Args:
            inputs: The files to score.
            scored: Makes the scores of some of them.
            report: Called with the number of files that are done, before each portion.
        Raises:
            NotFinite: the network's answer for a row is not finite; the draft is gone.
        """
        done = {name for portion in self.portions for name in portion.inputs}
        left: Sequence[Input] = [each for each in inputs if each.name not in done]
        size = FIRST_MB * 1e6
        while left:
            report(len(inputs) - len(left))
            some, left = _cut(left, size)
            began = time.monotonic()
            self.add(scored([each.name for each in some]), inputs=[each.name for each in some])
            size *= 2 if time.monotonic() - began < SHORT_S else 1

    def add(self, scored: DataFrame, *, inputs: Sequence[str] = ()) -> None:
        """Write the scores of one portion, and list it as finished.

        Raises:
            NotFinite: the network's answer for a row is not finite; the draft is gone.
        """
        try:
            files, rows, digest = self._written(scored)
        except NotFinite:
            self.delete()
            raise
        except BaseException:
            if not self.portions:
                self.delete()
            raise
        self.portions += (Portion(inputs=tuple(inputs), files=tuple(files), rows=rows, digest=digest),)
        self._store.put(self._document, _Done(portions=self.portions).model_dump_json().encode())

    def delete(self) -> None:
        """Keep nothing."""
        delete_draft(self._store, self._folder)

    def _found(self) -> tuple[Portion, ...]:
        """The finished portions of an earlier run; whatever else it left is deleted."""
        try:
            done = read_model(self._store, self._document, _Done, expected="a list of portions",
                              remedy="delete its folder and run `sparkring score` again").portions
        except FileNotFoundError:
            done = ()
        listed = {file for portion in done for file in portion.files}
        for file in parquet_files(self._store, draft_of(self._folder)):
            if file not in listed:
                self._store.delete(file)
        self._store.delete(f"{draft_of(self._folder)}/_temporary")
        return done

    def _written(self, scored: DataFrame) -> tuple[list[str], int, str]:
        """Have Spark write the rows; the new files, their rows and the digest of their ids."""
        draft, spark = draft_of(self._folder), scored.sparkSession
        with writing_area(self._store, spark) as area:
            before = set(parquet_files(area, draft))
            scored.write.mode("append").parquet(spark_path(area.path(draft)))
            files = [file for file in parquet_files(area, draft) if file not in before]
            self._require_finite(scored, [literal(spark_path(area.path(file))) for file in files])
            rows = sum(_read(area, file, pq.read_metadata).num_rows for file in files)
            digest = to_hex(add(self._digest(area, file) for file in files))
            if area is not self._store:
                for file in files:
                    self._store.upload(Path(area.path(file)), file)
        return files, rows, digest

    def _digest(self, store: Store, file: str) -> int:
        if not self._digested:
            return 0
        table = _read(store, file, partial(pq.read_table, columns=[self._row_id]))
        return rows_digest(table[self._row_id].to_numpy())

    def _require_finite(self, scored: DataFrame, paths: Collection[str]) -> None:
        """Check that the network's answer for every row is finite."""
        if not paths:
            return
        written = scored.sparkSession.read.schema(scored.schema).parquet(*paths)
        answer = named(self._telling)
        strange = answer.isNull() | ~(sf.abs(answer) < float("inf"))  # a NaN reaches Spark as null
        example = sf.min(sf.when(strange, named(self._row_id))) if self._row_id else sf.lit(None)
        count, row = written.agg(sf.count_if(strange), example).collect()[0]
        if count:
            which = f", e.g. that with {self._row_id} {row}" if self._row_id else ""
            raise NotFinite(f"the network's answer is not finite for {count} rows{which}; see whether their features are far beyond those "
                            "that it was trained on, and whether its training went well. Nothing was kept.")


def parquet_files(store: Store, folder: str) -> list[str]:
    """The Parquet files in a folder."""
    return [f"{folder}/{name}" for name in store.names(folder) if name.endswith(".parquet")]


def count_rows(store: Store, folder: str) -> int:
    """The rows of the Parquet files in a folder."""
    return sum(_read(store, file, pq.read_metadata).num_rows for file in parquet_files(store, folder))


def _cut(inputs: Sequence[Input], size: float) -> tuple[Sequence[Input], Sequence[Input]]:
    """The first inputs, of ``size`` bytes or little more, and the rest."""
    total = place = 0
    while place < len(inputs) and total < size:
        total += inputs[place].bytes
        place += 1
    return inputs[:place], inputs[place:]


def _read(store: Store, file: str, reader: Callable[[pa.NativeFile], Read]) -> Read:
    with store.open_input(file) as source:
        return reader(source)
