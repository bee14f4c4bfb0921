"""A cross-validation on Spark: one version in folds, one ring for each, and each row validated once by figures that are not its own."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from torch.nn.functional import binary_cross_entropy_with_logits

from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.order.row_order import group_rows
from sparkring.pipelines.training.job.model_files import load_model
from sparkring.spark_jobs.cross_validating.cross_validate import cross_validate
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.report import report
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.stored.audit import audit
from tests.support.etl_tables import etl_config, trips, write_trips
from tests.support.training import events_of

pytest_plugins = ["tests.support.spark_sessions"]

FOLDS = 3
FEATURES: dict[str, Any] = {
    "numeric": [{"column": "km", "fill": "median", "scale": "robust", "indicator": True}, "km2", {"column": "km3", "scale": "log1p"}],
    "categorical": ["city"], "buckets": [{"column": "km", "quantiles": 5}], "moments": [{"column": "day", "numbers": ["days"]}],
    "hashed": [{"column": "city", "ids": 50}]}
COLUMNS = "id * 10 AS row_id, id, day, late, km, km * km AS km2, km * 3 AS km3, city"
TRAIN = {"num_ranks": 1, "epochs": 2, "batch_rows": 64}


def _config(folder: Path, **prepare_keys: Any) -> Config:
    made = etl_config(folder, query=f"SELECT {COLUMNS} FROM trips", features=FEATURES, num_files=1, **prepare_keys)
    return made.changed(run=None, train=made.train.changed(**TRAIN))


@pytest.fixture(scope="module")
def config(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Prepared: three folds, and a test split."""
    made = _config(tmp_path_factory.mktemp("folds"), split={"by": "fold", "column": "row_id", "folds": FOLDS, "test_share": 0.15})
    prepare(made, spark=spark)
    return made


def _rows(dataset: Dataset, manifest: Manifest, split: str) -> dict[str, NDArray[Any]]:
    """All rows of a split as training reads them, by tensor, in the order of their ids."""
    loader = Loader(SplitReader(dataset.store, manifest, split), LoaderConfig(batch_rows=10_000, seed=0, lanes=1), rank=0, num_ranks=1)
    with closing(loader.epoch(0)) as batches:
        found = {name: tensor.numpy().copy() for name, tensor in next(batches).tensors.items()}
    order = np.argsort(found["row_id"])
    return {name: values[order] for name, values in found.items()}


def _same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> bool:
    return one.keys() == other.keys() and all(np.allclose(one[name], other[name], rtol=1e-6, atol=1e-6) for name in one)


def _alone(spark: SparkSession, folder: Path, dataset: Dataset, fold: int) -> Dataset:
    """A dataset of ordinary splits with the rows of a fold's view, fitted by ``prepare`` on that train split alone."""
    view = dataset.manifest(fold=fold)
    ids = {name: ", ".join(str(number // 10) for number in _rows(dataset, view, name)["row_id"]) for name in ("validation", "test")}
    part = f"CASE WHEN id IN ({ids['validation']}) THEN 'validation' WHEN id IN ({ids['test']}) THEN 'test' ELSE 'train' END AS part"
    made = etl_config(folder, query=f"SELECT {COLUMNS}, {part} FROM trips", features=FEATURES, num_files=1,
                      split={"by": "column", "column": "part"})
    prepare(made, spark=spark)
    return Dataset(made.dataset)


def _require_equal_views(spark: SparkSession, folder: Path, dataset: Dataset, fold: int) -> None:
    alone, view = _alone(spark, folder, dataset, fold), dataset.manifest(fold=fold)
    for name in ("train", "validation", "test"):
        assert _same(_rows(dataset, view, name), _rows(alone, alone.manifest(), name)), name
    assert view.preprocessing == alone.manifest().preprocessing
    other = dataset.manifest(fold=(fold + 1) % FOLDS).preprocessing
    leaky = view.model_copy(update={"preprocessing": other})
    assert not _same(_rows(dataset, leaky, "train"), _rows(alone, alone.manifest(), "train")), "the control: figures of another fold"


def test_a_fold_s_rows_are_what_prepare_alone_makes_of_its_train_rows(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    _require_equal_views(spark, tmp_path, Dataset(config.dataset), 1)


@pytest.mark.nightly
@pytest.mark.parametrize("fold", [0, 2])
def test_so_are_those_of_each_other_fold(spark: SparkSession, config: Config, tmp_path: Path, fold: int) -> None:
    _require_equal_views(spark, tmp_path, Dataset(config.dataset), fold)


def test_each_row_is_validated_once_by_a_model_that_has_not_seen_it(spark: SparkSession, config: Config) -> None:
    found = cross_validate(config, spark=spark)
    dataset, seen = Dataset(config.dataset), list[int]()
    for each in found.folds:
        view, mine = dataset.manifest(fold=each.fold), config.changed(run=each.run)
        held_out, trained = _rows(dataset, view, "validation"), _rows(dataset, view, "train")
        seen += held_out["row_id"].tolist()
        assert not set(held_out["row_id"]) & set(trained["row_id"])
        model, card = load_model(mine.run_url)
        assert card.fold == each.fold
        with torch.inference_mode():
            logits = model(numeric=torch.from_numpy(held_out["numeric"]), categorical=torch.from_numpy(held_out["categorical"]))
        loss = binary_cross_entropy_with_logits(logits.double(), torch.from_numpy(held_out["label"]).double())
        assert each.metrics["loss"] == pytest.approx(float(loss), rel=1e-5), "it was validated on these rows, and no others"
        assert sum(record["rows"] for record in events_of(mine, "step") if record["epoch"] == 0) == len(trained["row_id"])
        proved = audit(mine.run_url)
        assert (proved.finished, proved.epochs, proved.rows) == (True, 2, len(trained["row_id"]))
    labelled = {trip.id * 10 for trip in trips() if trip.late is not None}
    assert sorted(seen) == sorted(labelled - set(_rows(dataset, dataset.manifest(), "test")["row_id"].tolist()))
    assert found.metrics["loss"].mean == pytest.approx(np.mean([each.metrics["loss"] for each in found.folds]))
    assert found.metrics["loss"].deviation == pytest.approx(np.std(np.array([each.metrics["loss"] for each in found.folds], float), ddof=1))
    document = json.loads(Path(found.document).read_text(encoding="utf-8"))
    assert [fold["run"] for fold in document["folds"]] == [each.run for each in found.folds]
    assert "Held-out auc by fold" in Path(found.page).read_text(encoding="utf-8")
    again = cross_validate(config, spark=spark)
    assert again.folds == found.folds
    assert {len(events_of(config.changed(run=each.run), "start")) for each in again.folds} == {1}, "no fold was trained again"


def test_a_fold_s_run_is_a_run_like_any_other(spark: SparkSession, config: Config) -> None:
    mine = config.changed(fold=2)
    found = evaluate(mine, spark=spark)
    assert found["network"]["rows"] == Dataset(config.dataset).manifest().splits["test"].rows
    assert found["logistic_regression"]["auc"] > 0.9, "baselines read the same encoded rows"
    scored = pq.read_table(score(mine, spark=spark, split="validation").url.removeprefix("file://"))
    held_out = _rows(Dataset(config.dataset), Dataset(config.dataset).manifest(fold=2), "validation")
    assert sorted(scored["row_id"].to_pylist()) == held_out["row_id"].tolist()
    page = report(mine)
    assert page.absent == ()
    assert "validated on fold 2, trained on all others" in Path(page.path).read_text(encoding="utf-8")


@pytest.mark.nightly
def test_rows_that_are_appended_fall_into_the_folds(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path, split={"by": "fold", "column": "row_id", "folds": FOLDS})
    write_trips(tmp_path / "trips.csv", trips()[:600])
    first = prepare(config, spark=spark)
    write_trips(tmp_path / "trips.csv", trips())
    second = prepare(config, append=True, spark=spark)
    assert second.changed_rows == 0
    assert sum(second.rows.values()) == sum(trip.late is not None for trip in trips()) > sum(first.rows.values())
    dataset = Dataset(config.dataset)
    assert dataset.manifest(2).folds == dataset.manifest(1).folds
    rows = [_rows(dataset, dataset.manifest(2, fold=fold), "validation")["row_id"] for fold in range(FOLDS)]
    assert len(set(np.concatenate(rows).tolist())) == sum(second.rows.values())
    assert group_rows([file.row_groups for file in dataset.manifest(2, fold=0).splits["train"].files]).sum() == sum(map(len, rows[1:]))


@pytest.mark.nightly
@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_folds_are_for_other_tasks_too(spark: SparkSession, tmp_path: Path, task: str) -> None:
    label = {"multiclass": "IF(km > 66, 'far', IF(km > 33, 'near', 'here')) AS kind", "regression": "coalesce(km, 5) * 3 + 1e6 AS kind"}
    made = etl_config(tmp_path, query=f"SELECT id * 10 AS row_id, km, city, {label[task]} FROM trips", task=task, label="kind",
                      features={"numeric": ["km"], "categorical": ["city"]}, split={"by": "fold", "column": "row_id", "folds": 2})
    config = made.changed(run=None, train=made.train.changed(**TRAIN))
    prepare(config, spark=spark)
    found = cross_validate(config, spark=spark)
    assert sum(each.rows for each in found.folds) == len(trips())
    assert all(each.mean is not None for each in found.metrics.values())
    views = [Dataset(config.dataset).manifest(fold=fold) for fold in range(2)]
    if task == "regression":
        assert views[0].preprocessing.label != views[1].preprocessing.label
        assert all(each.standard == view.preprocessing.label for view in views for each in view.tensors if each.name == "label")
    else:
        assert views[0].preprocessing.classes == ("far", "here", "near")
