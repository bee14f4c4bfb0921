"""Groups of rows: how they are cut, which are named, and what chance alone names."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from sparkring.pipelines.data.dataset.preprocessing import (
    BucketFeature,
    CategoricalFeature,
    HashFeature,
    MomentPart,
    NumericFeature,
    Preprocessing,
)
from sparkring.spark_jobs.explaining.groups import Grouping, groupings
from sparkring.spark_jobs.explaining.network import Judged
from sparkring.spark_jobs.explaining.sample import Rows
from sparkring.spark_jobs.explaining.slices import KEPT, LEAST_ROWS, NAMED, auc, find_slices, holm

MANY = 200
"""Groups of a feature with many values."""


def _grouping(rows: int, groups: int, *, seed: int = 0, name: str = "city") -> Grouping:
    return Grouping(name, np.random.default_rng(seed).integers(0, groups, rows), [f"{name} {place}" for place in range(groups)])


def _judged(losses: np.ndarray) -> Judged:
    return Judged(losses, losses)


def test_a_planted_group_is_named_with_its_loss_against_the_rest_s() -> None:
    random, grouping = np.random.default_rng(1), _grouping(60_000, MANY)
    losses = random.exponential(0.4, 60_000) + 0.25 * (grouping.places == 17)
    found = find_slices(_judged(losses), np.zeros(60_000), [grouping, _grouping(60_000, 5, seed=9, name="day")], task="regression",
                        split_rows=60_000)
    assert [(group.feature, group.value) for group in found.worst] == [("city", "city 17")]
    (worst,) = found.worst
    inside, outside = losses[grouping.places == 17], losses[grouping.places != 17]
    assert (worst.rows, found.worse, found.tested) == (len(inside), 1, MANY + 5)
    assert (worst.loss, worst.rest, worst.measure) == pytest.approx((inside.mean(), outside.mean(), inside.mean()))
    alone = stats.norm.sf(stats.ttest_ind(inside, outside, equal_var=False).statistic)
    assert worst.p_value == pytest.approx(found.tested * alone)  # Holm's factor of the smallest


def test_chance_alone_names_a_group_in_one_evaluation_of_twenty_and_without_the_correction_in_nearly_all() -> None:
    named = uncorrected = 0
    for seed in range(100):
        losses = np.random.default_rng(seed).exponential(0.4, 20_000)
        found = find_slices(_judged(losses), np.zeros(20_000), [_grouping(20_000, 100, seed=seed)], task="regression", split_rows=20_000)
        named += found.worse > 0
        uncorrected += min(group.p_value for group in found.groups) / found.tested < 0.05
    assert named <= 10  # 5 expected; of a fair test, 10 or more come in less than 3 of 100 trials
    assert uncorrected > 90


def test_holm_s_correction_is_worked_out_by_hand() -> None:
    assert holm(np.array([0.04, 0.01, 0.03])) == pytest.approx([0.06, 0.03, 0.06])  # 3 * 0.01, 2 * 0.03, then no lower than before
    assert holm(np.array([0.9, 0.8])) == pytest.approx([1, 1])


def test_small_groups_are_not_compared_and_those_that_are_the_same_rows_are_named_once() -> None:
    places = np.zeros(5_000, np.int64)
    places[:LEAST_ROWS - 1], places[1_000:1_500] = 1, 2
    losses = np.where(places > 0, 2.0, 1.0) + np.random.default_rng(0).normal(0, 0.1, 5_000)
    twice = [Grouping(name, places, ["most", "few", "bad"]) for name in ("first", "second")]
    found = find_slices(_judged(losses), np.zeros(5_000), twice, task="regression", split_rows=9_000)
    assert {group.value for group in found.groups} == {"most", "bad"}
    assert [group.value for group in found.worst] == ["bad"]
    assert (len(found.worst), found.worse, found.rows, found.split_rows) == (1, 2, 5_000, 9_000)


def test_ten_are_named_and_fifty_of_a_feature_are_kept() -> None:
    grouping = _grouping(40_000, MANY)
    losses = np.random.default_rng(2).exponential(0.1, 40_000) + 1.0 * (grouping.places < 30)
    found = find_slices(_judged(losses), np.zeros(40_000), [grouping], task="regression", split_rows=40_000)
    assert (len(found.worst), found.worse, len(found.groups)) == (NAMED, 30, KEPT)
    assert list(found.worst) == sorted(found.worst, key=lambda group: -group.loss + group.rest)


def test_the_area_under_the_curve_is_scikit_learn_s_with_ties_and_undefined_for_one_label() -> None:
    random = np.random.default_rng(3)
    scores, positive = random.integers(0, 20, 500).astype(np.float64), random.random(500) < 0.3
    assert auc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))
    assert auc(scores, np.zeros(500, bool)) is None
    assert auc(scores, np.ones(500, bool)) is None


def test_each_kind_of_feature_is_cut_as_people_would_name_it() -> None:
    hour = MomentPart(of="at", part="hour", wave="sin", time_zone="UTC")
    fitted = Preprocessing(
        numeric=(NumericFeature(column="km", mean=50, std=10, nulls=2, indicator="km_null"),
                 NumericFeature(column="stops", mean=1, std=0.5, nulls=0),
                 NumericFeature(column="paid", mean=0, std=1, nulls=0, scale="log1p", centre=0, spread=1),
                 NumericFeature(column="hour_sin", mean=0, std=1, nulls=0, moment=hour)),
        categorical=(CategoricalFeature(column="city", vocabulary=("Bern", "Cork")),),
        buckets=(BucketFeature(column="age_range", of="age", edges=(18.0, 65.0)),),
        hashed=(HashFeature(column="tail_hash", of="tail", ids=8, seed=0),), train_rows=10)
    km = np.arange(10) - 4.5  # 5, 15 ... 95 km
    marked = np.zeros(10)
    marked[-1] = 1
    numeric = np.stack([km, np.tile([-2.0, 0.0], 5), np.log1p(np.arange(10)), np.zeros(10), marked], axis=1).astype(np.float32)
    ids = np.stack([np.arange(10) % 3, np.arange(10) % 4, np.arange(10) % 8], axis=1)
    cut = {each.feature: each for each in groupings(fitted, Rows(numeric, ids, np.zeros(10)))}
    assert list(cut) == ["city", "age_range", "km", "stops", "paid"]
    assert cut["city"].names == ["null, rare or new", "Bern", "Cork"]
    assert cut["age_range"].names == ["null", "below 18", "18 to 65", "from 65"]
    assert cut["stops"].names == ["0", "1", "null"]
    assert cut["km"].names == ["below 21", "21 to 37", "37 to 53", "53 to 69", "from 69", "null"]
    assert cut["km"].places.tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 4, 5]
    assert cut["paid"].names[0].startswith("below ")
    assert cut["paid"].places[-1] == 4
