"""Rows that are no DataFrame of Spark's are refused in one sentence, before Spark is asked for anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

import sparkring
from sparkring.errors import SourceError
from sparkring.spark_jobs.inference.choose import Choices

TAKES_ROWS: dict[str, Callable[[Any], object]] = {
    "fit": lambda rows: sparkring.TorchClassifier(labelCol="late").fit(rows),
    "explain": lambda rows: sparkring.TorchRegressor(labelCol="late").explain(rows),
    "transform": lambda rows: sparkring.TorchModel(
        trained=None, columns=(), choices=Choices("late", "binary", "", ()), run_url=None).transform(rows),  # type: ignore[arg-type]
    "score": lambda rows: sparkring.score("local/flights", frame=rows),
    "predict": lambda rows: sparkring.predict(rows, "local/flights")}


@pytest.mark.parametrize(("rows", "kind"), [
    pytest.param(pd.DataFrame({"late": [0, 1]}), "pandas DataFrame", id="pandas"), pytest.param([(0, 1)], "list", id="a list")])
@pytest.mark.parametrize("takes_rows", [pytest.param(call, id=name) for name, call in TAKES_ROWS.items()])
def test_rows_of_another_library_are_refused(takes_rows: Callable[[Any], object], rows: object, kind: str) -> None:
    with pytest.raises(SourceError, match=rf"^the (frame|DataFrame) to \w+ is a {kind}, and a Spark DataFrame was expected; make one with "
                                          r"spark\.createDataFrame"):
        takes_rows(rows)
