"""Check the rows against ``prepare.expectations`` with Great Expectations, before any row is written.

Spark computes null shares, ranges, uniqueness, allowed values and row counts in a few aggregations over all columns.
``drift.py`` compares the rows with the parent version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame

from sparkring.conf.schema import ColumnExpectations, ExpectationsConfig, PrepareConfig
from sparkring.errors import ConfigError, EnvironmentProblem, ExpectationResult, ExpectationsNotMet, nearest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.columns.splits import SPLITS
from sparkring.spark_jobs.etl.drift import ParentVersion, check_drift

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

_EXAMPLES = 3
"""Values that a result shows."""


@dataclass(frozen=True)
class _Check:
    column: str
    expected: str
    expectation: Expectation
    found: Callable[[dict[str, Any]], str]
    """Puts Great Expectations' measurement into words."""
    holds_empty: Callable[[dict[str, Any]], bool] = lambda _: False
    """Whether it is met because there is no value, where Great Expectations says that it is not."""


def check_expectations(examples: DataFrame, config: PrepareConfig, *, split: Column, dataset: Dataset) -> None:
    """Check all rows that are to be written against the config's expectations.

    Args:
        examples: The rows, raw.
        config: What is expected.
        split: The split of a row.
        dataset: Train rows are compared with its latest version.
    Raises:
        ExpectationsNotMet: an expectation is not met; the error lists all results.
        ConfigError, EnvironmentProblem: as ``check_rows`` and ``check_drift`` raise them.
    """
    latest = dataset.manifest() if dataset.versions() else None
    parent = ParentVersion(dataset.store, latest) if latest and not latest.folds else None  # in folds there is no train split
    results = [*check_rows(examples, config.expectations), *check_drift(examples.where(split == SPLITS[0]), config, parent)]
    if not all(result.met for result in results):
        raise ExpectationsNotMet(results)


def check_rows(rows: DataFrame, config: ExpectationsConfig) -> list[ExpectationResult]:
    """Check ``rows`` against every expectation but drift.

    Args:
        rows: All rows that are to be written, raw.
        config: The expectations.
    Returns:
        A result for each expectation but those of drift, met or not.
    Raises:
        ConfigError: an expectation names a missing column, or does not fit the column's type.
        EnvironmentProblem: Great Expectations is not installed.
    """
    for column in config.columns:
        if column not in rows.columns:
            raise ConfigError(f"prepare.expectations names column {column}, which is neither feature, label, id nor split column"
                              f"{nearest(column, rows.columns)}; the columns are {', '.join(rows.columns)}.")
    if not expects_rows(config):
        return []
    checks = list(_checks(config))
    return [_result(check, result) for check, result in zip(checks, _measure(rows, checks), strict=True)]


def expects_rows(config: ExpectationsConfig) -> bool:
    """Whether anything but drift is expected."""
    drift = {"max_mean_shift", "max_psi"}
    columns = (column.model_dump(exclude=drift, exclude_defaults=True) for column in config.columns.values())
    return any(columns) or bool(config.model_dump(exclude={"columns"}, exclude_defaults=True))


def _checks(config: ExpectationsConfig) -> Iterator[_Check]:
    gx = _library()
    if config.min_rows is not None or config.max_rows is not None:
        yield _Check("", f"{_range(config.min_rows, config.max_rows)} rows",
                     gx.ExpectTableRowCountToBeBetween(min_value=config.min_rows, max_value=config.max_rows),
                     lambda result: f"{result['observed_value']} rows")
    for column, expected in config.columns.items():
        yield from _column_checks(column, expected)


def _column_checks(column: str, expected: ColumnExpectations) -> Iterator[_Check]:
    gx = _library()
    if expected.max_null_share is not None:
        yield _Check(column, f"at most {expected.max_null_share:.4g} null",
                     gx.ExpectColumnValuesToNotBeNull(column=column, mostly=1 - expected.max_null_share), _null_share)
    if expected.min is not None or expected.max is not None:
        yield _Check(column, f"values {_range(expected.min, expected.max)}",
                     gx.ExpectColumnValuesToBeBetween(column=column, min_value=expected.min, max_value=expected.max), _outside)
    if expected.unique:
        yield _Check(column, "unique values", gx.ExpectColumnProportionOfUniqueValuesToBeBetween(column=column, min_value=1),
                     lambda result: f"{result['observed_value']:.4g} different values a row" if result["observed_value"] else "no values",
                     holds_empty=lambda result: not result["observed_value"])  # one value would make it more than 0
    if expected.allowed:
        yield _Check(column, f"one of {', '.join(map(str, expected.allowed))}",
                     gx.ExpectColumnValuesToBeInSet(column=column, value_set=list(expected.allowed)), _outside)


def _measure(rows: DataFrame, checks: Sequence[_Check]) -> list[Any]:
    """Great Expectations' results, in the order of the checks."""
    import great_expectations
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = great_expectations.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_spark("sparkring", persist=False).add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": rows})
    for place, check in enumerate(checks):
        check.expectation.meta = {"place": place}  # results come in another order
    suite = great_expectations.ExpectationSuite("sparkring", expectations=[check.expectation for check in checks])
    results = batch.validate(suite, result_format={"result_format": "BASIC", "partial_unexpected_count": _EXAMPLES}).results
    return sorted(results, key=lambda result: result.expectation_config.meta["place"])


def _result(check: _Check, result: Any) -> ExpectationResult:
    if not result.result:
        failures = (info for info in (result.exception_info, *result.exception_info.values()) if isinstance(info, dict))
        said = next((info["exception_message"] for info in failures if info.get("exception_message")), "no reason given")
        raise ConfigError(f"{check.column or 'the table'} cannot be expected to have {check.expected}: {' '.join(said.split())[:200]}; "
                          "correct prepare.expectations.")
    met = bool(result.success) or check.holds_empty(result.result)
    return ExpectationResult(check.column, check.expected, check.found(result.result), met)


def _null_share(result: dict[str, Any]) -> str:
    return f"{result['unexpected_percent'] / 100:.4g} null ({result['unexpected_count']} of {result['element_count']})"


def _outside(result: dict[str, Any]) -> str:
    if not result["unexpected_count"]:
        return "all"
    examples = ", ".join(str(value) for value in dict.fromkeys(result["partial_unexpected_list"]))
    return f"{result['unexpected_count']} of {result['element_count']} others, e.g. {examples}"


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return f"at most {most:g}"
    return f"at least {least:g}" if most is None else f"from {least:g} to {most:g}"


def _library() -> Any:
    """Great Expectations' expectations, imported on first use: the import takes seconds."""
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    try:
        import great_expectations.expectations
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(f"prepare.expectations needs Great Expectations, and {error.name} is not installed; "
                                 "pip install 'sparkring[expectations]'.") from None
    return great_expectations.expectations
