"""The borders of a split by ages: counted back from the newest row, and never moved back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkring.conf.schema import TimeSplit
from sparkring.conf.schema.data.splits import length_of
from sparkring.pipelines.data.dataset.manifest import RollingSplit
from sparkring.spark_jobs.etl.rolling import borders_of

SPLIT = TimeSplit(column="day", validation="36h", test="2w")
moments = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis adds the zone


@pytest.mark.parametrize(("age", "length"), [("36h", timedelta(hours=36)), ("30d", timedelta(days=30)), ("2w", timedelta(days=14))])
def test_an_age_is_a_number_of_hours_days_or_weeks(age: str, length: timedelta) -> None:
    assert length_of(age) == length


@pytest.mark.parametrize("age", ["0d", "30", "d", "1.5d", "-3d", "30 d", "1m"])
def test_other_texts_are_no_ages(age: str) -> None:
    with pytest.raises(ValueError, match=r"split\.?|String should match pattern"):
        TimeSplit(column="day", validation="1d", test=age)


@pytest.mark.parametrize("age", ["200000w", "9" * 30 + "h", "9" * 5000 + "d"])
def test_an_age_of_more_than_a_thousand_years_is_refused(age: str) -> None:
    with pytest.raises(ValueError, match="is more than 1000 years; give a shorter age"):
        TimeSplit(column="day", validation="1d", test=age)
    assert length_of("365000d") == timedelta(days=365_000)


@given(st.lists(moments, min_size=1, max_size=6))
def test_borders_never_move_back_and_test_reaches_to_the_newest_row_of_all(newest: list[datetime]) -> None:
    found: RollingSplit | None = None
    for moment in newest:
        before, found = found, borders_of(SPLIT, moment, found)
        assert before is None or (found.validation_from >= before.validation_from and found.test_from >= before.test_from)
    assert found is not None
    assert found.newest == max(newest)
    assert (found.newest - found.test_from, found.test_from - found.validation_from) == (timedelta(weeks=2), timedelta(hours=36))
    assert RollingSplit.model_validate_json(found.model_dump_json()) == found
