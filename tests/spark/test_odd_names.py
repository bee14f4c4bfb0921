"""Files and folders of any name: what Spark's readers take for a pattern is read as the name that it is, or refused in one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from petastorm import make_reader
from pyspark.sql import SparkSession

from harness.datasets import write_dataset
from sparkring.conf.schema import Config, SourceConfig
from sparkring.errors import ConfigError, SourceError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.sources.literal_paths import folder_matched, literal
from sparkring.spark_jobs.etl.sources.tables import Source, listed, open_raw
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.stored.audit import audit
from sparkring.spark_jobs.stored.datasets import verify_version
from sparkring.spark_jobs.train import train
from tests.support.etl_tables import etl_config, save_untrained
from tests.support.training import train_config

pytest_plugins = ["tests.support.spark_sessions"]


def _reading(config: Config, path: str, **changes: str) -> Config:
    """The config with another path of its source."""
    source = config.prepare.sources["trips"].model_copy(update={"path": path, **changes})
    return config.model_copy(update={"prepare": config.prepare.model_copy(update={"sources": {"trips": source}})})


@pytest.mark.parametrize(("folder", "file"), [
    pytest.param("a[1] {b} 50%25", "trips [2].csv", id="brackets, braces, spaces, percents"),
    pytest.param("what? *.csv #1 \\n", "trips{a,b}*.csv", id="what else patterns are made of", marks=pytest.mark.nightly),
    pytest.param("at 10:30 %", "trips.csv", id="a colon")])
def test_sources_datasets_and_scores_lie_in_folders_of_any_name(spark: SparkSession, tmp_path: Path, folder: str, file: str) -> None:
    place = tmp_path / folder
    config = etl_config(place)
    (place / "trips.csv").rename(place / file)
    etl_config(tmp_path / "a1 b 50%25")  # what the first pattern would find
    for path in (str(place / file), f"file://{quote(str(place / file))}"):
        config = _reading(config, path)
        assert sum(prepare(config, spark=spark).rows.values()) == 891
    assert verify_version(config.dataset).rows == {"train": 594, "validation": 148, "test": 149}
    dataset, manifest = Dataset(config.dataset), Dataset(config.dataset).manifest()
    save_untrained(config)
    assert score(config, spark=spark).rows == 149
    inside = f"data/{manifest.data_id}/test"
    ours = pa.concat_tables(pq.read_table(dataset.store.path(each.path)) for each in manifest.splits["test"].files)
    if not {"?", "#"} & set(folder):  # Petastorm takes the path of a file: URL as it is written, but ends it there
        with make_reader(f"file://{dataset.store.path(inside)}", reader_pool_type="dummy", num_epochs=1) as reader:
            rows = sorted((row._asdict() for row in reader), key=lambda row: row["row_id"])
        assert rows == ours.sort_by("row_id").to_pylist()


@pytest.mark.timeout(180)
def test_a_run_lies_in_a_folder_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    workspace = tmp_path / "a[1] {b} 50%25 c:d ?*#"
    write_dataset(workspace / "dataset", ([300, 100], [201]))
    config = train_config(workspace, model={"hidden": [4]}, train={"num_ranks": 2, "epochs": 1, "batch_rows": 100, "checkpoint_steps": 2})
    assert train(config, spark=spark).steps == 7
    proved = audit(config.run_url)
    assert (proved.finished, proved.epochs, proved.rows) == (True, 1, 601)
    moved = tmp_path / "moved"
    workspace.rename(moved)
    assert audit(str(moved / "runs/first"), dataset_url=str(moved / "dataset")).rows == 601
    assert [entry.name for entry in tmp_path.iterdir()] == ["moved"]  # nothing lies beside it under a name half read


@pytest.mark.parametrize("kind", ["parquet", "json", "orc"])
def test_a_folder_whose_name_is_a_pattern_is_that_folder(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    config = etl_config(tmp_path)
    rows = spark.read.csv(str(tmp_path / "trips.csv"), header=True, nullValue="NA")
    rows.write.format(kind).save(str(tmp_path / "trips[1]"))
    rows.limit(3).write.format(kind).save(str(tmp_path / "trips1"))  # what the pattern would find
    prepared = prepare(_reading(config, str(tmp_path / "trips[1]"), format=kind), spark=spark)
    assert sum(prepared.rows.values()) == 891


@pytest.mark.parametrize(("name", "message"), [
    pytest.param("a:b.csv", r"source trips: Spark cannot open .*/a:b\.csv, since its name holds a colon; rename the file", id="a colon"),
    pytest.param("_trips.csv", r"trips: Spark skips .*/_trips\.csv, like all names that begin with _ or a dot", id="hidden"),
    pytest.param("a:b/trips[1].csv", r"a:b/trips\[1\]\.csv holds a colon and one of \{\}\[\]\*\?\\, and Spark cannot read such a name",
                 id="a colon and a pattern")])
def test_what_spark_cannot_read_is_refused_with_what_to_do(
        spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    config = etl_config(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "trips.csv", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / name), name):
        with pytest.raises((SourceError, ConfigError), match=message) as raised:
            prepare(_reading(config, path), spark=spark)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("pattern", "columns"), [
    pytest.param("x-*/day=*/*", ["a"], id="files"), pytest.param("x-*/day=*", ["a"], id="folders"),
    pytest.param("x-[1]", ["a", "day"], id="a folder of folders")])
def test_some_files_behind_a_pattern_have_the_columns_of_all(spark: SparkSession, tmp_path: Path, pattern: str, columns: list[str]) -> None:
    for place in ("x-1/day=1", "x-1/day=2", "x-2/day=1"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.csv").write_text("a\n1\n")
    config = SourceConfig(path=f"file:{tmp_path}/{pattern}", format="csv", columns={"a": "int"})
    source = Source("rows", config, None)  # None: as of storage that Spark alone can reach
    files = [name for name, _, _ in listed(spark, source, config)]
    for only in ((), files[:2], files[:1]):
        assert open_raw(spark, source, cache=tmp_path, only=only)[0].columns == columns
    assert open_raw(spark, source, cache=tmp_path, only=files[:2])[0].count() == 2


@pytest.mark.parametrize(("pattern", "files", "folder"), [
    ("hdfs:///data/x-*/", ["hdfs://host:8020/data/x-1/day=1/a", "hdfs://host:8020/data/x-1/b"], "hdfs://host:8020/data/x-1"),
    ("s3a://b/x-*", ["s3a://b/x-1", "s3a://b/x-2"], None), ("s3a://b/x-*", ["s3a://b/x-1"], None),
    ("s3a://b/day=*", ["s3a://b/day=1/a", "s3a://b/day=2/a"], None)])
def test_the_folder_that_a_pattern_matches_is_found_in_its_files(pattern: str, files: list[str], folder: str | None) -> None:
    assert folder_matched(pattern, files) == folder


@pytest.mark.parametrize("mark", ["?", "#", "?day=1", "#1"])
def test_a_url_that_ends_early_is_refused(tmp_path: Path, mark: str) -> None:
    config = etl_config(tmp_path)
    assert isinstance(config.prepare.sources["trips"], SourceConfig)
    with pytest.raises(ConfigError, match=r"holds \? or #, which end the path of a URL; write them as %3F and %23"):
        prepare(_reading(config, f"file://{tmp_path}/trips{mark}"))
    with pytest.raises(ConfigError, match=r"holds \? or #"):
        Dataset(f"file://{tmp_path}/dataset{mark}")


@pytest.mark.parametrize(("address", "expected"), [
    ("file:/data/a b%20c:d", "file:/data/a b%20c:d"), ("file:/data/a[1]/{b}", r"file:/data/a\[1\]/\{b\}"),
    ("hdfs://[::1]:8020/data/*", r"hdfs://[::1]:8020/data/\*"), ("s3a://bucket/a?b\\c", r"s3a://bucket/a\?b\\c"),
    ("/Volumes/main/a[1]", r"/Volumes/main/a\[1\]")])
def test_only_what_a_pattern_is_made_of_is_escaped(address: str, expected: str) -> None:
    assert literal(address) == expected
