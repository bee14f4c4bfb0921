"""Appending texts: every file, old or new, is found once and whole; the parent's tokenizer stays; epochs are exact and can be audited."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.errors import DatasetChanged, DatasetError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.order.rowhash import rows_digest, to_hex
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.stored.audit import audit
from sparkring.spark_jobs.stored.datasets import verify_version
from sparkring.spark_jobs.train import train

pytest_plugins = ["tests.support.spark_sessions"]

SPLITS = ("train", "validation", "test")
FIRST, ALL = range(60), range(95)


def _write(folder: Path, numbers: Sequence[int]) -> dict[str, bytes]:
    """Small programs; returns their bytes by their path."""
    files = {f"{'abc'[number % 3]}/m{number}.py": f"x = {number}  # gr\u00fc\u00dfe {'.' * (number % 40)}\n".encode() for number in numbers}
    for name, content in files.items():
        path = folder / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return files


def _config(folder: Path, **tokens: Any) -> Config:
    return parse_config({
        "name": "code", "workspace": str(folder / "workspace"), "run": "first",
        "model": {"kind": "text", "width": 8, "layers": 1, "heads": 2},
        "train": {"num_ranks": 2, "epochs": 2, "batch_rows": 16},
        "prepare": {"sources": {"code": {"format": "text", "path": str(folder / "code")}}, "query": "SELECT path, content FROM code",
                    "task": "next_token", "num_files": 2, "min_row_groups": 8,
                    "features": {"tokens": {"column": "content", "document": "path", "length": 32, "pack_mb": 0.001, **tokens}},
                    "split": {"by": "hash", "column": "path", "validation_share": 0.2, "test_share": 0.2}}}, origin="test")


@pytest.fixture(scope="module")
def appended(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, dict[str, bytes]]:
    """Sixty files, then thirty-five more; and the bytes of all."""
    folder = tmp_path_factory.mktemp("text")
    _write(folder, FIRST)
    config = _config(folder)
    prepare(config, spark=spark)
    files = _write(folder, ALL)
    result = prepare(config, append=True, spark=spark)
    assert (result.version, result.reused) == (2, False)
    return config, files


def _manifests(config: Config) -> tuple[Manifest, Manifest]:
    dataset = Dataset(config.dataset)
    return dataset.manifest(1), dataset.manifest(2)


def _documents(config: Config, manifest: Manifest, split: str) -> list[list[int]]:
    """The token ids of a split's documents, read back from its rows in the order of their ids."""
    store, tokens = Dataset(config.dataset).store, manifest.preprocessing.tokens
    assert tokens is not None
    table = pa.concat_tables(pq.read_table(store.path(file.path)) for file in manifest.splits[split].files).sort_by("row_id")
    stream = np.concatenate([np.load(io.BytesIO(cell)) for cell in table["tokens"].to_pylist()]).astype(np.int64)
    stream = stream[stream != tokens.pad_id]
    return [part[part < tokens.end_id].tolist() for part in np.split(stream, np.flatnonzero(stream == tokens.end_id))][:-1]


def test_every_file_old_or_new_is_found_once_and_whole_in_the_split_that_its_name_decides(
        appended: tuple[Config, dict[str, bytes]], spark: SparkSession, tmp_path: Path) -> None:
    config, files = appended
    before, after = _manifests(config)
    found = {split: [bytes(document) for document in _documents(config, after, split)] for split in SPLITS}
    assert sorted(document for documents in found.values() for document in documents) == sorted(files.values())
    _write(tmp_path, ALL)
    whole = _config(tmp_path)
    prepare(whole, spark=spark)  # all at once: the same documents in each split, the same counts
    fresh = Dataset(whole.dataset).manifest()
    for split in SPLITS:
        assert sorted(found[split]) == sorted(bytes(document) for document in _documents(whole, fresh, split))
    counted, expected = after.preprocessing.tokens, fresh.preprocessing.tokens
    assert counted is not None
    assert expected is not None
    assert (counted.tokens, counted.text_bytes) == (expected.tokens, expected.text_bytes)
    assert after.preprocessing.train_rows == after.splits["train"].rows > before.splits["train"].rows


def test_the_parents_files_stay_and_both_versions_are_whole(appended: tuple[Config, dict[str, bytes]]) -> None:
    config, _ = appended
    before, after = _manifests(config)
    for split in SPLITS:
        assert after.splits[split].files[:len(before.splits[split].files)] == before.splits[split].files
    assert len(after.documents) == 2 * len(before.documents) == 2
    for version in (1, 2):
        verify_version(config.dataset, version)
    listed = Path(Dataset(config.dataset).store.path(after.documents[1].path))
    content = listed.read_bytes()
    listed.write_bytes(content[:-1] + b"?")
    with pytest.raises(DatasetChanged, match=r"documents/part-00000\.parquet has SHA-256"):  # the control: the list is looked at, too
        verify_version(config.dataset, 2)
    listed.write_bytes(content)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
def test_an_epoch_reads_each_row_of_both_once_and_the_same_rows_in_each_step(
        appended: tuple[Config, dict[str, bytes]], num_ranks: int) -> None:
    config, _ = appended
    dataset, manifest = Dataset(config.dataset), _manifests(config)[1]

    def steps(ranks: int) -> list[list[int]]:
        found: list[list[int]] = []
        for rank in range(ranks):
            reader = SplitReader(dataset.store, manifest, "train")
            loader = Loader(reader, LoaderConfig(batch_rows=16, seed=3, lanes=30), rank=rank, num_ranks=ranks)
            for step, batch in enumerate(loader.epoch(0)):
                found += [[]] if step == len(found) else []
                found[step] += batch.tensors["row_id"].tolist()
        return [sorted(rows) for rows in found]

    found = steps(num_ranks)
    ids = np.array([row for rows in found for row in rows])
    assert (len(ids), len(set(ids.tolist()))) == (manifest.splits["train"].rows,) * 2
    assert to_hex(rows_digest(ids)) == manifest.splits["train"].rows_digest
    assert found == steps(1)


def test_training_on_it_is_audited_as_exact(appended: tuple[Config, dict[str, bytes]], spark: SparkSession) -> None:
    config, _ = appended
    manifest = _manifests(config)[1]
    train(config, spark=spark)
    proved = audit(config.run_url)
    assert (proved.finished, proved.epochs, proved.dataset_version) == (True, 2, 2)
    assert (proved.rows, proved.rows_digest) == (manifest.splits["train"].rows, manifest.splits["train"].rows_digest)


def test_a_folder_without_new_files_makes_no_version(appended: tuple[Config, dict[str, bytes]], spark: SparkSession) -> None:
    config, _ = appended
    again = prepare(config, append=True, spark=spark)
    assert (again.version, again.reused, Dataset(config.dataset).versions()) == (2, True, [1, 2])


def _tokenizer(path: Path, text: str) -> Tokenizer:
    made = Tokenizer(BPE())
    made.pre_tokenizer, made.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator([text] * 3, BpeTrainer(vocab_size=275, initial_alphabet=ByteLevel.alphabet(), show_progress=False))
    made.save(str(path))
    return made


def test_new_texts_are_cut_by_the_parents_tokenizer_whatever_lies_where_it_came_from(spark: SparkSession, tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    first = _tokenizer(given, "x = 1  # gr\u00fc\u00dfe ....")
    _write(tmp_path, range(30))
    config = _config(tmp_path, tokenizer=str(given))
    prepare(config, spark=spark)
    other = _tokenizer(given, "entirely different words")
    files = _write(tmp_path, range(45))
    prepare(config, append=True, spark=spark)
    child = Dataset(config.dataset).manifest()
    ids = [document for split in SPLITS for document in _documents(config, child, split)]
    assert sorted(first.decode(document).encode() for document in ids) == sorted(files.values())
    assert sorted(other.decode(document).encode() for document in ids) != sorted(files.values())  # the control: it makes a difference
    given.unlink()
    _write(tmp_path, range(50))
    assert prepare(config, append=True, spark=spark).version == 3  # nobody asks for the file any more
    kept = Path(Dataset(config.dataset).store.path(f"data/{Dataset(config.dataset).manifest().data_id}/tokenizer.json"))
    kept.write_text(other.to_str())
    _write(tmp_path, range(55))
    with pytest.raises(DatasetError, match=r"tokenizer\.json has SHA-256 \w+, version 3 says"):
        prepare(config, append=True, spark=spark)
