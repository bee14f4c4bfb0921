"""Measure how far train rows have drifted from the parent version's.

The parent's train rows are in random order, so the first row groups of its files are a fair sample. The parent's preprocessing
encodes the sample and the new rows; numbers are compared in ten bins that each hold a tenth of the sample, categories by id,
where 0 stands for values that the parent never saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sparkring.conf.schema import PrepareConfig
from sparkring.errors import ConfigError, ExpectationResult
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.loading.page_checksums import read_verified
from sparkring.pipelines.data.stores.base import Store
from sparkring.spark_jobs.etl.columns.expressions import finite, named
from sparkring.spark_jobs.etl.encoding.table_features import encode

SAMPLE_ROWS = 200_000
"""Approximate size of the parent's sample; it determines the index of ten bins to a few thousandths."""
_LEAST_SHARE = 1e-4
"""Smallest share of a bin: an empty bin would make the index infinite."""


@dataclass(frozen=True)
class ParentVersion:
    """The version that a new one follows."""

    store: Store
    manifest: Manifest


def check_drift(train: DataFrame, config: PrepareConfig, parent: ParentVersion | None) -> list[ExpectationResult]:
    """Compare the train rows of a new version with its parent's.

    Args:
        train: Train rows, raw.
        config: The features, and what is expected of them.
        parent: The version to compare with; None for a first version, which cannot drift.
    Returns:
        A result for each expectation of drift, met or not. Where there is nothing to compare (no parent, no train rows, a feature that
        the parent does not have) it is met.
    Raises:
        ConfigError: a column is not a feature of the kind that the limit is for.
    """
    numeric = set(config.features.numbers)
    results = []
    for key, words, allowed, measure in (
            ("max_mean_shift", "mean moved by at most {:g} deviations", numeric, _mean_shifts),
            ("max_psi", "stability index at most {:g}", numeric | set(config.features.categorical), _stability_indices)):
        columns = config.expectations.columns
        limits = {name: limit for name in columns if (limit := getattr(columns[name], key)) is not None}
        if strange := sorted(limits.keys() - allowed):
            raise ConfigError(f"prepare.expectations.columns.{strange[0]}.{key}: this limit is for "
                              f"{', '.join(sorted(allowed)) or 'no feature of this config'}, not for {strange[0]}; leave it out.")
        unmeasured = "no earlier version" if parent is None else "no train rows" if limits and train.isEmpty() else ""
        results += [ExpectationResult(name, words.format(limits[name]), unmeasured, met=True) for name in limits if unmeasured]
        if limits and parent is not None and not unmeasured:
            found, version = measure(train, list(limits), parent), parent.manifest.version
            results += [_result(name, words.format(limits[name]), found.get(name), limits[name], version) for name in limits]
    return results


def stability_index(before: NDArray[np.int64], now: NDArray[np.int64]) -> float:
    """Population stability index of two histograms over the same bins: the sum over bins of (q - p) ln(q / p).

    Args:
        before: Rows in each bin, shape (bins,).
        now: The same for the rows to compare, shape (bins,).
    Returns:
        0 for equal shares; 0.1 is usually called a small shift, 0.25 a large one. Shares are at least 0.0001 here.

    Source: Siddiqi, "Credit Risk Scorecards", Wiley 2006, chapter 9; it is Kullback and Leibler's symmetric divergence (1951).
    """
    p, q = (np.maximum(counts / max(counts.sum(), 1), _LEAST_SHARE) for counts in (before, now))
    return float(((q - p) * np.log(q / p)).sum())


def _result(column: str, expected: str, found: float | None, limit: float, version: int) -> ExpectationResult:
    if found is None:
        return ExpectationResult(column, expected, f"not in version {version}", met=True)
    return ExpectationResult(column, expected, f"{found:.4g} against version {version}", met=found <= limit)


def _mean_shifts(train: DataFrame, columns: Sequence[str], parent: ParentVersion) -> dict[str, float]:
    """Distance of each mean from the parent's, in the parent's standard deviations, without nulls."""
    known = [feature for feature in parent.manifest.preprocessing.numeric if feature.column in columns and feature.moment is None]
    if not known:
        return {}
    means = train.agg(*(sf.avg(finite(named(feature.column))) for feature in known)).collect()[0]
    return {feature.column: abs(mean - feature.mean) / feature.std if mean is not None else float("inf")
            for feature, mean in zip(known, means, strict=True)}


def _stability_indices(train: DataFrame, columns: Sequence[str], parent: ParentVersion) -> dict[str, float]:
    before = parent.manifest.preprocessing
    known = Preprocessing(numeric=tuple(feature for feature in before.numeric if feature.column in columns and feature.moment is None),
                          categorical=tuple(each for each in before.categorical if each.column in columns and each.moment is None),
                          train_rows=before.train_rows)
    names = [feature.column for feature in (*known.numeric, *known.categorical)]
    if not names:
        return {}
    sample = sample_rows(parent.store, parent.manifest.splits["train"].files, names)
    edges = {feature.column: np.unique(np.quantile(sample[feature.column], np.arange(1, 10) / 10)) for feature in known.numeric}
    bins = {name: np.searchsorted(edges[name], values, side="right") if name in edges else values for name, values in sample.items()}
    sizes = {feature.column: feature.size for feature in known.categorical} | {name: len(cuts) + 1 for name, cuts in edges.items()}
    encoded = encode(train.select([named(name) for name in names]), known)
    places = [_bin(named(name), edges[name]) if name in edges else named(name) for name in names]
    pairs = encoded.select(sf.posexplode(sf.array(*(place.cast("int") for place in places))).alias("place", "bin"))
    now = {name: np.zeros(sizes[name], np.int64) for name in names}
    for place, number, rows in pairs.groupBy("place", "bin").count().collect():
        now[names[place]][number] = rows
    return {name: stability_index(np.bincount(bins[name], minlength=sizes[name]), now[name]) for name in names}


def _bin(value: Column, edges: NDArray[np.float64]) -> Column:
    """The number of edges at or below the value, as ``searchsorted`` from the right counts them."""
    return sum(((value.cast("double") >= float(edge)).cast("int") for edge in edges), start=sf.lit(0))


def sample_rows(store: Store, files: Sequence[DataFile], columns: list[str]) -> dict[str, NDArray[np.float64]]:
    """Encoded values of about SAMPLE_ROWS rows of a dataset's files: the first row groups of each file."""
    tables = []
    for file in files:
        wanted = SAMPLE_ROWS * file.rows / max(sum(each.rows for each in files), 1)
        started = np.cumsum([0, *file.row_groups[:-1]])
        groups = [number for number, rows in enumerate(started) if rows < wanted]
        with store.open_input(file.path) as opened:
            tables.append(read_verified(opened, path=store.path(file.path), columns=columns, groups=groups))
    return {name: column.to_numpy() for name, column in zip(columns, pa.concat_tables(tables).select(columns).columns, strict=True)}
