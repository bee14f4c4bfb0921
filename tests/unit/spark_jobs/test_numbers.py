"""Numbers in the config and in the manifest: short where nothing was said, refused where it makes no sense, older ones still read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkring.conf.loading import load_config
from sparkring.conf.schema import FeaturesConfig
from sparkring.errors import ConfigError
from sparkring.pipelines.data.dataset.preprocessing import NumericFeature, Preprocessing
from sparkring.spark_jobs.reporting.facts.data import feature_words
from tests.support.configs import MINIMAL, write


def test_a_name_and_a_section_that_says_no_more_are_one_recipe() -> None:
    names, sections = (FeaturesConfig.model_validate({"numeric": numeric}) for numeric in (["a", "b"], ["a", {"column": "b"}]))
    assert names == sections
    assert names.model_dump(mode="json")["numeric"] == ["a", "b"]  # as recipes had it before there was more to say


def test_what_is_said_survives_the_recipe() -> None:
    given = {"column": "b", "fill": 0.0, "scale": "log1p", "indicator": True}
    features = FeaturesConfig.model_validate({"numeric": ["a", given]})
    dumped = features.model_dump(mode="json")
    assert dumped["numeric"] == ["a", given]
    assert FeaturesConfig.model_validate(dumped) == features
    assert (features.numbers, features.derived) == (("a", "b"), ("b_is_null",))


@pytest.mark.parametrize(("numeric", "message"), [
    ("[{column: km, fill: mode}]", "0.fill: neither a known word nor a finite number; give mean, median or a number"),
    ("[{column: km, fill: .nan}]", "prepare.features.numeric.0.fill: neither a known word nor a finite number;"),
    ("[{column: km, scale: log}]", "prepare.features.numeric.0.scale: Input should be 'standard', 'min_max', 'robust', 'log1p' or 'none'"),
    ("[{column: km, scal: log1p}]", "unknown key prepare.features.numeric.0.scal; did you mean 'scale'?"),
    ("[{column: km, fill: -1, scale: log1p}]", "km is filled with -1, which has no ln(1 + x); give a number above -1"),
    ("[km, {column: km, fill: 0}]", "features named twice: km"),
    ("[{column: km, indicator: true}, km_is_null]", "features named twice: km_is_null")])
def test_what_makes_no_sense_is_refused_by_name(tmp_path: Path, numeric: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(write(tmp_path, "tiny.yaml", MINIMAL), [f"prepare.features.numeric={numeric}"])
    assert message in str(raised.value)


def test_a_number_of_an_older_manifest_is_standardised_and_filled_with_the_mean() -> None:
    older: dict[str, Any] = {"column": "km", "moment": None, "mean": 4.0, "std": 2.0, "nulls": 3}
    fitted = Preprocessing.model_validate({"numeric": [older], "categorical": [], "train_rows": 10})
    km = fitted.numeric[0]
    assert (km.fill, km.filled_with, km.scale, km.centre, km.spread, km.indicator) == ("mean", 4.0, "standard", 4.0, 2.0, None)
    assert fitted.numeric_columns == ("km",)


def test_columns_that_say_where_a_null_was_follow_all_numbers() -> None:
    numeric = tuple(NumericFeature(column=name, mean=0, std=1, nulls=0, indicator=indicator)
                    for name, indicator in (("a", "a_is_null"), ("b", None), ("c", "c_is_null")))
    assert Preprocessing(numeric=numeric, categorical=(), train_rows=1).numeric_columns == ("a", "b", "c", "a_is_null", "c_is_null")


@pytest.mark.parametrize(("given", "words"), [
    ({}, "mean 4, standard deviation 2"),
    ({"nulls": 3}, "mean 4, standard deviation 2; null in 30.0% of rows"),
    ({"nulls": 3, "fill": "median", "filled_with": 3.5},
     "mean 4, standard deviation 2; null in 30.0% of rows, filled with the median 3.5"),
    ({"scale": "min_max", "centre": 1, "spread": 9, "indicator": "km_is_null"},
     "1 becomes 0 and 10 becomes 1 (mean 4, standard deviation 2); never null, filled with the mean 4; km_is_null marks nulls"),
    ({"scale": "robust", "centre": 3.5, "spread": 1.5, "fill": "constant", "filled_with": 0, "nulls": 1},
     "median 3.5, quartiles 1.5 apart (mean 4, standard deviation 2); null in 10.0% of rows, filled with 0")])
def test_a_number_in_words(given: dict[str, Any], words: str) -> None:
    figures: dict[str, Any] = {"mean": 4.0, "std": 2.0, "nulls": 0}
    assert feature_words(NumericFeature(column="km", **figures | given), train_rows=10) == words
