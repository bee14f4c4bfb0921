"""The estimator's parameters follow Spark ML's rules; no Spark runs."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import LongType

import sparkring
from sparkring.estimator.look import Found
from sparkring.estimator.params import TrainParams
from sparkring.spark_jobs.inference.choose import Choices
from sparkring.spark_jobs.inference.facts import ColumnFacts


def test_every_parameter_has_a_getter_a_setter_and_a_line_in_explain_params() -> None:
    estimator = sparkring.TorchClassifier()
    told = estimator.explainParams()
    for param in estimator.params:
        name = param.name[0].upper() + param.name[1:]
        assert callable(getattr(estimator, f"get{name}"))
        assert callable(getattr(estimator, f"set{name}"))
        assert f"{param.name}: " in told
    assert {param.name for param in estimator.params} > {"labelCol", "featuresCols", "numRanks", "epochs", "config"}


def test_setters_chain_and_a_copy_has_its_own_values() -> None:
    estimator = sparkring.TorchRegressor(labelCol="price").setEpochs(3).setNumRanks(2).setHiddenSizes([4, 2])
    copied = estimator.copy({estimator.epochs: 5})
    assert (copied.getEpochs(), estimator.getEpochs()) == (5, 3)
    assert (copied.getLabelCol(), copied.getNumRanks(), copied.getHiddenSizes(), copied.uid) == ("price", 2, [4, 2], estimator.uid)


def test_what_is_not_said_has_a_default_or_is_not_defined() -> None:
    estimator = sparkring.TorchClassifier()
    assert (estimator.getLabelCol(), estimator.getEpochs(), estimator.getLearningRate(), estimator.getConfig()) == ("label", 10, 1e-3, {})
    assert not any(estimator.isDefined(name) for name in ("numRanks", "batchRows", "hiddenSizes", "workspace", "weightCol", "featuresCols"))


@pytest.mark.parametrize(("params", "said"), [
    ({"epochs": "three"}, "epochs"), ({"config": {"train": object()}}, "config must hold plain keys"),
    ({"config": [1]}, "config must be a mapping"), ({"hiddenSizes": 3}, "hiddenSizes")])
def test_a_value_of_another_type_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        sparkring.TorchClassifier(**params)


def test_a_word_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'label'"):
        sparkring.TorchClassifier(label="late")  # type: ignore[call-arg]
    assert issubclass(sparkring.TorchClassifier, TrainParams)


def test_each_fit_s_source_has_a_name_of_its_own_since_fits_of_one_session_run_at_once() -> None:
    found = Found(Choices("late", "binary", "0 or 1", ()), (), {"numeric": ["km"]}, ColumnFacts("late", LongType(), 10, 0, 2), None)
    estimator = sparkring.TorchClassifier()
    prepares = [estimator._config_of(found, view="v", folder="/w", num_ranks=1).prepare for _ in range(2)]
    (first,), (second,) = (prepare.sources for prepare in prepares)
    assert first != second
    assert [prepare.query for prepare in prepares] == [f"SELECT * FROM {first}", f"SELECT * FROM {second}"]
