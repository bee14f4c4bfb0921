"""Texts on their way into a dataset: rows of tokens from which the files can be read back, the same whatever Spark does."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from petastorm import make_reader
from pyspark.sql import SparkSession

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config, SourceConfig
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.spark_jobs.etl.sources.folders import read_folder
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, error_of_worker

pytest_plugins = ["tests.support.spark_sessions"]

LENGTH, END, PAD = 32, 256, 257


def _write(folder: Path, *, count: int = 60) -> dict[str, bytes]:
    """Small programs, some with letters beyond ASCII; returns them by their path."""
    files = {f"{'abc'[number % 3]}/{'_' * (number % 2)}m{number}.py": f"x = {number}  # grüße {'.' * (number % 40)}\n".encode()
             for number in range(count)}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "a/readme.txt").write_text("not a program")
    return files


def _config(folder: Path, **prepare_settings: Any) -> Config:
    settings = {
        "sources": {"code": {"format": "text", "path": str(folder / "code"), "pattern": "*.py"}},
        "query": "SELECT path, content FROM code", "task": "next_token", "num_files": 2,
        "features": {"tokens": {"column": "content", "document": "path", "length": LENGTH, "pack_mb": 0.001}},
        "split": {"by": "hash", "column": "path", "validation_share": 0.2, "test_share": 0.2}, **prepare_settings}
    return parse_config({"name": "code", "workspace": str(folder / "workspace"), "prepare": settings,
                         "model": {"kind": "text", "width": 8, "layers": 1, "heads": 2}}, origin="test")


def _manifest(config: Config) -> Manifest:
    return Dataset(config.dataset).manifest()


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("text")
    files = _write(folder / "code")
    config = _config(folder)
    prepare(config, spark=spark)
    return config, files


def _documents(config: Config, split: str) -> list[bytes]:
    """The files of a split, read back from its rows: put in the order of their ids, without padding, cut at the end ids."""
    manifest = _manifest(config)
    with make_reader(f"{Dataset(config.dataset).url}/data/{manifest.data_id}/{split}", reader_pool_type="dummy", num_epochs=1) as reader:
        rows = {int(row.row_id): row.tokens for row in reader}
    assert len(rows) == manifest.splits[split].rows
    assert {(row.shape, row.dtype) for row in rows.values()} == {((LENGTH,), np.dtype(np.uint16))}
    stream = np.concatenate([rows[number][rows[number] != PAD] for number in sorted(rows)])
    return [bytes(part[part < END].astype(np.uint8)) for part in np.split(stream, np.flatnonzero(stream == END))][:-1]


def test_every_file_is_found_again_in_one_split_byte_for_byte_by_petastorm_s_reader(made: tuple[Config, dict[str, bytes]]) -> None:
    config, files = made
    found = [document for split in ("train", "validation", "test") for document in _documents(config, split)]
    assert sorted(found) == sorted(files.values())


def test_the_manifest_counts_tokens_and_bytes_of_each_split(made: tuple[Config, dict[str, bytes]]) -> None:
    config, files = made
    manifest = _manifest(config)
    tokens = manifest.preprocessing.tokens
    assert tokens is not None
    assert (manifest.task, manifest.label, manifest.classes, tokens.end_id, tokens.pad_id) == ("next_token", "tokens", 258, END, PAD)
    assert sum(tokens.text_bytes.values()) == sum(map(len, files.values()))
    assert sum(tokens.tokens.values()) == sum(map(len, files.values())) + len(files)  # an end id each


def test_our_loader_gives_the_rows_as_integers(made: tuple[Config, dict[str, bytes]]) -> None:
    config, _ = made
    dataset = Dataset(config.dataset)
    reader = SplitReader(dataset.store, _manifest(config), "train")
    loader = Loader(reader, LoaderConfig(batch_rows=8, seed=1, lanes=2), rank=0, num_ranks=1)
    rows = [row for batch in loader.epoch(0) for row in batch.tensors["tokens"].tolist()]
    assert len(rows) == _manifest(config).splits["train"].rows
    assert {len(row) for row in rows} == {LENGTH}
    assert sum(token < END for row in rows for token in row) == sum(map(len, _documents(config, "train")))


def test_the_same_files_give_the_same_bytes_whatever_spark_s_partitions(
        spark: SparkSession, made: tuple[Config, dict[str, bytes]], tmp_path: Path) -> None:
    _write(tmp_path / "code")
    config = _config(tmp_path, query="SELECT /*+ REPARTITION(7) */ path, content FROM code ORDER BY content DESC")
    prepare(config, spark=spark)
    assert _manifest(config).content_id == _manifest(made[0]).content_id


def test_another_file_changes_the_rows_of_its_own_pack_only(
        spark: SparkSession, made: tuple[Config, dict[str, bytes]], tmp_path: Path) -> None:
    files = _write(tmp_path / "code")
    name = next(iter(files))
    (tmp_path / "code" / name).write_bytes(files[name].replace(b"x", b"y"))
    config = _config(tmp_path)
    prepare(config, spark=spark)
    before, after = (_rows(made[0]), _rows(config))
    changed = {number for number in before.keys() | after.keys() if before.get(number) != after.get(number)}
    assert len(changed) == 1  # one byte
    assert len(before) > 50


def _rows(config: Config) -> dict[int, bytes]:
    store = Dataset(config.dataset).store
    rows: dict[int, bytes] = {}
    assert isinstance(store, LocalStore)
    for split in _manifest(config).splits.values():
        for file in split.files:
            table = pq.read_table(store.path(file.path))
            rows |= dict(zip(table["row_id"].to_pylist(), table["tokens"].to_pylist(), strict=True))
    return rows


def test_packed_texts_are_read_unpacked_and_a_damaged_one_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    texts = {f"{number}.py.gz": f"x = {number}\n".encode() * 50 for number in range(3)}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(gzip.compress(text))

    def read(pattern: str) -> dict[str, bytes]:
        config = SourceConfig(path=str(tmp_path), format="text", pattern=pattern)
        frame, _ = read_folder(spark, "code", config, tmp_path, cache=tmp_path / "cache")
        return {row["path"]: bytes(row["content"]) for row in frame.collect()}

    assert read("*.py.gz") == texts
    assert read("*") == {name: (tmp_path / name).read_bytes() for name in texts}, "the control: another pattern reads bytes as they are"
    (tmp_path / "1.py.gz").write_bytes(gzip.compress(texts["1.py.gz"])[:-9])
    with pytest.raises(SPARK_ERRORS) as raised:
        read("*.gz")
    assert str(error_of_worker(raised.value)).startswith("1.py.gz cannot be unpacked: ")


@pytest.mark.parametrize(("query", "message"), [
    pytest.param("SELECT path, IF(path LIKE 'b/%', NULL, content) AS content FROM code", "column content is null in 20 of 60 documents",
                 id="a document without text"),
    pytest.param("SELECT 'one' AS path, content FROM code", "the (train|validation|test) split is empty: path has about 1 different values",
                 id="one name for all"),
    pytest.param("SELECT path, length(content) AS content FROM code", "column content of the query is int, but .* must be string",
                 id="a number for a text"),
])
def test_what_is_wrong_with_texts_is_said_and_nothing_is_left(spark: SparkSession, tmp_path: Path, query: str, message: str) -> None:
    _write(tmp_path / "code")
    config = _config(tmp_path, query=query)
    with pytest.raises(SourceError, match=message):
        prepare(config, spark=spark)
    assert Dataset(config.dataset).versions() == []
