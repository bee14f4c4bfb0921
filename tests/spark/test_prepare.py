"""Preparing a dataset version: the right rows in the right split, fitted on train only, readable by Petastorm, reproducible."""

from __future__ import annotations

import hashlib
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from petastorm import make_batch_reader, make_reader
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import sparkring
from sparkring.conf.schema import Config
from sparkring.errors import CommitConflict
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.order.rowhash import rows_digest, to_hex
from sparkring.spark_jobs.etl.writing.write_dataset import _one_a_task
from sparkring.spark_jobs.prepare import PrepareResult, prepare
from sparkring.spark_jobs.spark.progress import Bar, SilentProgress
from tests.support import seams
from tests.support.etl_tables import TEST_FROM, etl_config, examples, trips

pytest_plugins = ["tests.support.spark_sessions"]

FEATURES = ["km", "km2", "city"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, PrepareResult]:
    """One prepared version, which tests only read."""
    config = etl_config(tmp_path_factory.mktemp("made"))
    return config, prepare(config, spark=spark)


def _manifest(config: Config) -> Manifest:
    return Dataset(config.dataset).manifest()


def _table(config: Config, split: str) -> pa.Table:
    """All rows of a split in their order, by the manifest alone."""
    store, manifest = Dataset(config.dataset).store, _manifest(config)
    return pa.concat_tables(pq.read_table(store.path(file.path)) for file in manifest.splits[split].files)


def _changed(config: Config, **prepare_settings: object) -> Config:
    return config.model_copy(update={"prepare": config.prepare.model_copy(update=prepare_settings)})


class _Notes(SilentProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_rows_without_a_label_are_left_out_and_the_others_split_by_time(made: tuple[Config, PrepareResult]) -> None:
    config, result = made
    assert (result.version, result.reused) == (1, False)
    assert result.rows == {name: len(examples(name)) for name in ("train", "validation", "test")}
    for name in result.rows:
        table = _table(config, name)
        assert sorted(table["row_id"].to_pylist()) == [trip.id * 10 for trip in examples(name)]
        assert dict(zip(table["row_id"].to_pylist(), table["late"].to_pylist(), strict=True)) == {t.id * 10: t.late for t in examples(name)}


def test_the_manifest_says_what_the_files_hold(made: tuple[Config, PrepareResult]) -> None:
    config, _ = made
    store, manifest = Dataset(config.dataset).store, _manifest(config)
    for name, split in manifest.splits.items():
        table = _table(config, name)
        assert (split.rows, split.positives) == (table.num_rows, sum(table["late"].to_pylist()))
        assert split.rows_digest == to_hex(rows_digest(table["row_id"].to_numpy()))
        for file in split.files:
            data = Path(store.path(file.path)).read_bytes()
            footer = pq.read_metadata(store.path(file.path))
            assert (file.bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
            assert file.row_groups == tuple(footer.row_group(number).num_rows for number in range(footer.num_row_groups))
            assert 0 < sum(file.row_group_bytes) < file.bytes
    source = manifest.source["trips"]
    assert (source["rows"], source["sha256"]) == (900, hashlib.sha256(Path(source["path"]).read_bytes()).hexdigest())
    assert (manifest.row_id, manifest.label, manifest.parent) == ("row_id", "late", None)
    assert {tensor.name: (tensor.dtype, tensor.fields, tensor.stacked) for tensor in manifest.tensors} == {
        "numeric": ("float32", ("km", "km2"), True), "categorical": ("int64", ("city",), True),
        "label": ("float32", ("late",), False), "row_id": ("int64", ("row_id",), False)}


def test_files_hold_native_columns_that_cannot_be_null(made: tuple[Config, PrepareResult]) -> None:
    schema = _table(made[0], "train").schema
    assert {field.name: (str(field.type), field.nullable) for field in schema} == {
        "row_id": ("int64", False), "late": ("int8", False), "km": ("float", False), "km2": ("float", False), "city": ("int32", False)}


def test_features_are_standardised_and_looked_up_with_what_train_rows_say(made: tuple[Config, PrepareResult]) -> None:
    config, _ = made
    train = examples("train")
    known = [trip.km for trip in train if trip.km is not None]
    mean, std = statistics.fmean(known), statistics.pstdev(known)
    km = _manifest(config).preprocessing.numeric[0]
    assert (km.column, km.nulls) == ("km", len(train) - len(known))
    assert (km.mean, km.std) == (pytest.approx(mean, rel=1e-8), pytest.approx(std, rel=1e-8))
    cities = Counter(trip.city for trip in train if trip.city is not None)
    assert cities["Rome"] == 3 < config.prepare.min_category_rows < cities["Cork"] < cities["Bern"]
    assert _manifest(config).preprocessing.categorical[0].vocabulary == ("Bern", "Cork")
    for name in ("train", "validation", "test"):
        rows = {trip.id * 10: trip for trip in examples(name)}
        for row in _table(config, name).to_pylist():
            trip = rows[row["row_id"]]
            assert row["km"] == pytest.approx(0.0 if trip.km is None else (trip.km - mean) / std, abs=1e-6)  # a null is the mean
            assert row["city"] == {"Bern": 1, "Cork": 2}.get(trip.city or "", 0)  # null, rare and never seen: 0


@pytest.mark.filterwarnings("ignore::UserWarning")  # Petastorm's own, about itself
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_petastorm_opens_each_split_both_ways(made: tuple[Config, PrepareResult], split: str) -> None:
    config, _ = made
    manifest = _manifest(config)
    expected = sorted(_table(config, split).to_pylist(), key=lambda row: row["row_id"])
    url = f"{Dataset(config.dataset).url}/data/{manifest.data_id}/{split}"
    with make_reader(url, reader_pool_type="dummy", num_epochs=1) as reader:
        rows = sorted((row._asdict() for row in reader), key=lambda row: row["row_id"])
        assert {name: field.numpy_dtype for name, field in reader.schema.fields.items()} == {
            "row_id": np.int64, "late": np.int8, "km": np.float32, "km2": np.float32, "city": np.int32}
    assert rows == expected
    with make_batch_reader(url, reader_pool_type="dummy", num_epochs=1) as reader:
        batches = [batch._asdict() for batch in reader]
    assert len(batches) == sum(len(file.row_groups) for file in manifest.splits[split].files)
    assert sorted((dict(zip(batch, values, strict=True)) for batch in batches for values in zip(*batch.values(), strict=True)),
                  key=lambda row: row["row_id"]) == expected


def test_held_out_rows_change_nothing_that_was_fitted(made: tuple[Config, PrepareResult], spark: SparkSession, tmp_path: Path) -> None:
    other = [trip if trip.day < TEST_FROM else replace(trip, km=1e6, city="Bern", late=int(trip.id % 7 > 0)) for trip in trips()]
    config = etl_config(tmp_path, other)
    prepare(config, spark=spark)
    assert _manifest(config).preprocessing == _manifest(made[0]).preprocessing
    assert _manifest(config).content_id != _manifest(made[0]).content_id


def test_the_same_source_gives_the_same_bytes_elsewhere(made: tuple[Config, PrepareResult], spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path)
    spark.conf.set("spark.sql.shuffle.partitions", "7")  # how Spark cuts its work is no part of the result
    prepare(config, spark=spark)
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    assert _table(config, "train")["row_id"].to_pylist() == _table(made[0], "train")["row_id"].to_pylist()
    assert _manifest(config).content_id == _manifest(made[0]).content_id


def test_another_seed_gives_another_order_of_the_same_rows(made: tuple[Config, PrepareResult], spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, seed=2)
    prepare(config, spark=spark)
    assert _manifest(config).content_id != _manifest(made[0]).content_id
    assert _manifest(config).splits["train"].rows_digest == _manifest(made[0]).splits["train"].rows_digest
    orders = [_table(which, "train")["row_id"].to_numpy() for which in (config, made[0])]
    for order in orders:  # shuffled: neighbours in the file are strangers in the source
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.2
    assert (orders[0] != orders[1]).mean() > 0.9


def test_rows_can_stay_as_they_lie(made: tuple[Config, PrepareResult], spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, shuffle=False)
    prepare(config, spark=spark)
    assert _manifest(config).splits["train"].rows_digest == _manifest(made[0]).splits["train"].rows_digest
    ids = [_table(which, "train")["row_id"].to_numpy() for which in (config, made[0])]
    assert [bool((np.diff(each) > 0).all()) for each in ids] == [True, False]


def test_row_groups_are_many_and_nearly_equal(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, (replace(trip, id=6 * trip.id + copy) for trip in trips() for copy in range(6)), min_row_groups=10)
    prepare(config, spark=spark)
    split = _manifest(config).splits["train"]
    groups = [rows for file in split.files for rows in file.row_groups]
    assert (len(split.files), len(groups), sum(groups)) == (2, 10, split.rows)
    assert min(groups) > 0.9 * max(groups)
    small = _changed(config, row_group_mb=0.002)  # 4 + 4 + 8 + 4 + 8 bytes a row: about 71 rows a group
    prepare(small, spark=spark)
    groups = [rows for file in _manifest(small).splits["train"].files for rows in file.row_groups]
    assert max(groups) <= 73
    assert len(groups) == pytest.approx(split.rows / 71, abs=3)


@pytest.mark.parametrize("count", [1, 4, 37])
def test_each_file_is_written_by_a_task_of_its_own(spark: SparkSession, count: int) -> None:
    dealt = sf.array(*map(sf.lit, _one_a_task(spark, count)))
    rows = spark.range(200).select((sf.col("id") % count).cast("int").alias("file")).repartition(count, dealt[sf.col("file")])
    found = set(rows.select("file", sf.spark_partition_id()).collect())
    assert found == {(number, number) for number in range(count)}


def test_categories_that_are_all_rare_share_id_zero(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, min_category_rows=10_000)
    prepare(config, spark=spark)
    assert _manifest(config).preprocessing.cardinalities() == (1,)
    assert set(_table(config, "train")["city"].to_pylist()) == {0}


def test_an_equal_recipe_is_reused_without_spark_and_says_so(
        spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, progress = etl_config(tmp_path), _Notes()
    first = prepare(config, spark=spark, progress=progress)
    kept = sum(first.rows.values())
    assert progress.notes == [f"prepare: trips has 900 rows, the dataset {kept}: the query yields fewer, or late is null in some"]
    progress.notes.clear()
    monkeypatch.setattr(seams.PREPARE_SPARK_SESSION, lambda *_, **__: pytest.fail("asked for a session"))
    again = prepare(config, progress=progress)
    assert (again.version, again.reused, again.rows) == (1, True, first.rows)
    assert progress.notes == [f"prepare: version 1 was made from this source by this config; reusing {again.url}"]
    assert Dataset(config.dataset).versions() == [1]
    source = (tmp_path / "trips.csv").rename(tmp_path / "moved.csv")
    moved = {"trips": {"path": source}}
    assert prepare(config, sources=moved).reused, "its bytes are what counts, not their place"
    source.write_bytes(source.read_bytes() + b"\n")
    with pytest.raises(pytest.fail.Exception, match="asked for a session"):  # the control
        prepare(config, sources=moved)


def test_progress_is_shown_at_a_prompt_and_not_in_a_program(
        spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    config = etl_config(tmp_path)
    sparkring.prepare(config, spark=spark)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    sparkring.prepare(config, spark=spark)
    assert "reusing" in capsys.readouterr().err
    sparkring.prepare(config, spark=spark, progress=SilentProgress())
    assert capsys.readouterr().err == ""


@pytest.mark.nightly
@pytest.mark.parametrize("control", [False, True], ids=["as it is", "control"])
def test_what_prepare_writes_makes_no_warning_in_the_log_of_the_caller_s_session(tmp_path: Path, *, control: bool) -> None:
    """A session that is not ours logs warnings."""
    program = f"""
from pathlib import Path
from pyspark.sql import SparkSession
from sparkring import prepare
from sparkring.spark_jobs.etl.writing import write_dataset
from tests.support.etl_tables import etl_config

if {control}:
    write_dataset.PARQUET_WRITER = "another"
spark = SparkSession.builder.master("local[2]").getOrCreate()
print(prepare(etl_config(Path({str(tmp_path)!r})), spark=spark).version)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert ended.stdout == "1\n", ended.stderr
    assert ("WARN InternalParquetRecordWriter" in ended.stderr) == control


def test_another_source_config_or_a_lost_file_makes_a_new_version(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path)
    assert prepare(config, spark=spark).version == 1
    etl_config(tmp_path, [*trips(), replace(trips()[0], id=5000)])
    assert prepare(config, spark=spark).version == 2
    assert (_manifest(config).parent, _manifest(config).splits["train"].rows) == (1, len(examples("train")) + 1)
    other = _changed(config, min_category_rows=1)
    assert prepare(other, spark=spark).version == 3
    assert "Rome" in _manifest(other).preprocessing.categorical[0].vocabulary
    dataset = Dataset(other.dataset)
    Path(dataset.store.path(_manifest(other).splits["test"].files[0].path)).unlink()
    assert prepare(other, spark=spark).version == 4
    assert _manifest(other).content_id == dataset.manifest(3).content_id


def test_the_callers_session_is_left_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).createOrReplaceTempView("trips")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    config = etl_config(tmp_path)
    prepare(config, spark=spark)
    assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Kolkata"
    assert spark.table("trips").count() == 3
    spark.catalog.dropTempView("trips")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sorted(_table(config, "train")["row_id"].to_pylist()) == [trip.id * 10 for trip in examples("train")]  # read as UTC all the same
    prepare(_changed(config, seed=3), spark=spark)
    assert not spark.catalog.tableExists("trips")


def test_a_version_number_taken_meanwhile_is_a_conflict_and_leaves_no_data(
        made: tuple[Config, PrepareResult], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = etl_config(tmp_path)
    taken = _manifest(made[0])
    Dataset(config.dataset).commit(taken)
    monkeypatch.setattr(seams.DATASET_VERSIONS, lambda _: [])  # what was true a moment before the other writer committed
    with pytest.raises(CommitConflict, match="committed by another writer first"):
        prepare(config, spark=spark)
    monkeypatch.undo()
    assert _manifest(config) == taken
    assert list((tmp_path / "workspace/dataset/data").iterdir()) == []


def test_an_interruption_while_writing_leaves_no_data_and_no_version(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path)
    dataset = tmp_path / "workspace/dataset"
    seen: list[Path] = []

    class InterruptedBar:
        def update(self, done: int, *, total: int | None = None, text: str = "") -> None:
            if text == "writing validation":
                seen.extend(dataset.glob("data/*/train/*.parquet"))
                raise KeyboardInterrupt

    class Interrupted(SilentProgress):
        @contextmanager
        def stage(self, title: str, *, total: int | None = None) -> Iterator[Bar]:
            yield InterruptedBar()

    with pytest.raises(KeyboardInterrupt):
        prepare(config, spark=spark, progress=Interrupted())
    assert len(seen) == 2  # train had been written
    assert not list(dataset.rglob("*.parquet"))
    assert Dataset(config.dataset).versions() == []
    assert prepare(config, spark=spark).version == 1
