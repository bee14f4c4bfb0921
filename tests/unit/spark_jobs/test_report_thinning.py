"""Long series made short: what bins, envelopes and moving means hold."""

from __future__ import annotations

import numpy as np
import pytest

from sparkring.spark_jobs.reporting.facts.thinning import bin_means, envelope, moving_mean, thin


def test_a_short_series_stays_as_it_is() -> None:
    assert bin_means(np.array([3.0, 1.0, 2.0]), most=3).tolist() == [3.0, 1.0, 2.0]


def test_bins_are_means_of_neighbours() -> None:
    assert bin_means(np.array([1.0, 3.0, 10.0, 20.0]), most=2).tolist() == [2.0, 15.0]


def test_unequal_bins_still_hold_every_value_once() -> None:
    values = np.arange(7.0)
    means = bin_means(values, most=3)  # bins of 2, 2 and 3
    assert means.tolist() == [0.5, 2.5, 5.0]
    assert means @ [2, 2, 3] == values.sum()


def test_an_empty_series_stays_empty() -> None:
    nothing = np.array([])
    assert bin_means(nothing).tolist() == []
    assert moving_mean(nothing, weights=nothing, window=3).tolist() == []
    assert envelope(nothing, nothing).x == ()


def test_a_spike_survives_in_the_envelope_and_not_in_the_mean() -> None:
    values = np.zeros(10_000)
    values[5_123] = 9.0
    band = envelope(np.arange(10_000.0), values, most=100)
    assert (max(band.high), len(band.high)) == (9.0, 100)
    assert max(thin(np.arange(10_000.0), values, most=100).y) == pytest.approx(0.09)


def test_a_moving_mean_takes_what_there_is_at_the_ends() -> None:
    assert moving_mean(np.array([0.0, 3.0, 6.0, 9.0]), weights=np.ones(4), window=3).tolist() == [1.5, 3.0, 6.0, 7.5]


def test_a_window_of_one_changes_nothing() -> None:
    assert moving_mean(np.array([5.0, 7.0]), weights=np.array([3.0, 1.0]), window=1).tolist() == [5.0, 7.0]


def test_a_moving_mean_is_one_over_rows_not_over_steps() -> None:
    assert moving_mean(np.array([1.0, 9.0]), weights=np.array([3.0, 1.0]), window=4).tolist() == [3.0, 3.0]
