"""Figures as people read them."""

from __future__ import annotations

import math

import pytest

from sparkring.spark_jobs.reporting.facts import words


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0042, "4.2 ms"), (0.9996, "1 s"), (21.56, "21.6 s"), (59.97, "60 s"), (75, "1 min 15 s"), (7_300, "2 h 1 min"),
    (math.nan, words.DASH)])
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds).replace("\u00a0", " ") == text


@pytest.mark.parametrize(("value", "text"), [(12, "12"), (999, "999"), (1500, "1.5k"), (20_000, "20k"), (2e6, "2M"), (3e9, "3G")])
def test_figures_at_an_axis(value: float, text: str) -> None:
    assert words.compact(value) == text


@pytest.mark.parametrize(("num_bytes", "text"), [(12, "12 B"), (999_900, "1 MB"), (1_500_000, "1.5 MB"), (2e12, "2 TB")])
def test_sizes(num_bytes: float, text: str) -> None:
    assert words.size(num_bytes).replace("\u00a0", " ") == text


def test_what_does_not_exist_is_a_dash() -> None:
    assert (words.metric(None), words.metric(math.nan), words.share(None)) == (words.DASH,) * 3


def test_one_is_singular() -> None:
    assert (words.several(1, "rank"), words.several(2, "rank"), words.several(0, "step")) == ("1 rank", "2 ranks", "0 steps")


def test_moments_are_in_utc() -> None:
    assert words.moment(0).replace("\u00a0", " ") == "1970-01-01 00:00 UTC"
