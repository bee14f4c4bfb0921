"""Permutation importance of functions whose features are known to matter, or not to."""

from __future__ import annotations

import numpy as np
import pytest

from sparkring.pipelines.data.dataset.preprocessing import (
    BucketFeature,
    CategoricalFeature,
    MomentPart,
    NumericFeature,
    Preprocessing,
)
from sparkring.spark_jobs.explaining.importance import moved_together, permute_features
from sparkring.spark_jobs.explaining.sample import Rows
from tests.support import seams


def _fitted(*, indicator: str | None = None) -> Preprocessing:
    return Preprocessing(
        numeric=(NumericFeature(column="km", mean=0, std=1, nulls=0, indicator=indicator),
                 NumericFeature(column="noise", mean=0, std=1, nulls=0)),
        categorical=(CategoricalFeature(column="city", vocabulary=("Bern", "Cork")),), train_rows=1)


def _rows(rows: int = 8_000, *, columns: int = 2) -> Rows:
    random = np.random.default_rng(0)
    numeric, ids = random.normal(size=(rows, columns)).astype(np.float32), random.integers(0, 3, (rows, 1))
    return Rows(numeric, ids, 2.0 * numeric[:, 0].astype(np.float64) + 0.5 * ids[:, 0])


def _squares(rows: Rows) -> np.ndarray:
    """Losses of a network that has learned the labels, and leaves out the noise."""
    return (rows.labels - 2.0 * rows.numeric[:, 0] - 0.5 * rows.ids[:, 0]) ** 2


def test_a_planted_feature_leads_and_its_rise_is_known_and_one_that_means_nothing_has_none() -> None:
    found = permute_features(_rows(), _fitted(), _squares)
    assert [each.feature for each in found.features] == ["km", "city", "noise"]
    km, city, noise = found.features
    assert km.low < 2 * 2.0**2 < km.high  # of two independent draws the squared difference has twice the variance
    assert city.low < 2 * 0.5**2 * 2 / 3 < city.high
    assert (noise.rise, noise.low, noise.high) == (0, 0, 0)
    assert found.loss == pytest.approx(0, abs=1e-9)


def test_a_feature_that_only_disturbs_the_network_has_an_interval_around_0() -> None:
    found = permute_features(_rows(), _fitted(), lambda rows: (rows.labels - 2.1 * rows.numeric[:, 0] - 0.3 * rows.numeric[:, 1]) ** 2)
    noise = next(each for each in found.features if each.feature == "noise")
    assert noise.low < 0 < noise.high
    assert abs(noise.rise) < 0.05 * found.features[0].rise


def test_the_column_that_marks_nulls_moves_with_its_feature() -> None:
    """The loss is 0 as long as the mark stands where the number is 0, so any move of one without the other would be seen."""
    rows = _rows(columns=3)
    rows.numeric[::3, 0] = 0
    rows.numeric[:, 2] = rows.numeric[:, 0] == 0
    found = permute_features(rows, _fitted(indicator="km_null"), lambda some: np.abs((some.numeric[:, 0] == 0) - some.numeric[:, 2]) * 1.0)
    assert {each.feature: each.rise for each in found.features} == {"km": 0, "noise": 0, "city": 0}
    apart = Preprocessing(numeric=(*_fitted().numeric, NumericFeature(column="mark", mean=0, std=1, nulls=0)),
                          categorical=_fitted().categorical, train_rows=1)  # control: as a feature of its own it moves alone
    alone = permute_features(rows, apart, lambda some: np.abs((some.numeric[:, 0] == 0) - some.numeric[:, 2]) * 1.0)
    assert {each.feature for each in alone.features if each.rise > 0.3} == {"km", "mark"}


def test_what_is_made_of_one_column_moves_together_and_parts_of_a_moment_apart() -> None:
    def part(name: str, of: str, wave: str | None = None) -> NumericFeature:
        return NumericFeature(column=name, mean=0, std=1, nulls=0,
                              moment=MomentPart.model_validate({"of": "at", "part": of, "wave": wave, "time_zone": "UTC"}))

    fitted = Preprocessing(
        numeric=(part("hour_sin", "hour", "sin"), NumericFeature(column="km", mean=0, std=1, nulls=0, indicator="km_null"),
                 part("hour_cos", "hour", "cos"), part("month", "month")),
        categorical=(), buckets=(BucketFeature(column="km_range", of="km", edges=(1.0,)),), train_rows=1)
    assert {name: (moved.numeric, moved.ids) for name, moved in moved_together(fitted).items()} == {
        "hour of at": ([0, 2], []), "km": ([1, 4], [0]), "month of at": ([3], [])}


def test_the_same_seed_gives_the_same_figures_and_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert permute_features(_rows(), _fitted(), _squares) == permute_features(_rows(), _fitted(), _squares)
    monkeypatch.setattr(seams.IMPORTANCE_MOST_PREDICTED, 4_000)
    sizes = set[int]()

    def counted(rows: Rows) -> np.ndarray:
        sizes.add(len(rows))
        return _squares(rows)

    assert permute_features(_rows(), _fitted(), counted).rows == 1_000  # by 4 predictions, with their own values and three permuted
    assert sizes == {1_000}


def test_a_large_network_predicts_fewer_rows_but_some_in_any_case() -> None:
    def used(multiplied: int) -> int:
        return permute_features(_rows(), _fitted(), _squares, multiplied=multiplied).rows

    assert [used(multiplied) for multiplied in (1_000, 10**7, 10**9)] == [8_000, 2_500, 2_000]
