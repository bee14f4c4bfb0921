"""The query of the shipped flights config, on a handful of flights whose features are worked out by hand."""

from __future__ import annotations

import string
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkring.conf.loading import load_config
from sparkring.spark_jobs.etl.examples import run_query, tables
from sparkring.spark_jobs.spark.session import result_settings

pytest_plugins = ["tests.support.spark_sessions"]

CONFIG = load_config("base/flights").prepare
NINE = "2013-07-04T13:00:00Z"  # the hour of 9:00 in New York


def _flight(number: int, **changes: Any) -> dict[str, Any]:
    """A flight from JFK to Miami at 9:30 on the fourth of July."""
    return {"year": 2013, "month": 7, "day": 4, "hour": 9, "minute": 30, "time_hour": NINE, "sched_arr_time": 1210, "arr_delay": 0.0,
            "carrier": "B6", "flight": number, "tailnum": f"N{number}", "origin": "JFK", "dest": "MIA", "distance": 1090.0} | changes


def _observation(hour: int, **changes: Any) -> dict[str, Any]:
    """The weather at JFK at that hour (UTC)."""
    return {"origin": "JFK", "time_hour": f"2013-07-04T{hour:02}:00:00Z", "temp": 50.0 + hour, "dewp": 60.0, "humid": 50.0,
            "wind_dir": 90.0, "wind_speed": 10.0, "wind_gust": None, "precip": 0.0, "pressure": 1015.0, "visib": 10.0} | changes


FLIGHTS = [
    _flight(1, arr_delay=16.0),
    _flight(2, arr_delay=15.0, minute=5),
    _flight(3, arr_delay=None, carrier="DL", tailnum=None),  # cancelled
    _flight(4, origin="LGA", carrier="9E", dest="PHX", sched_arr_time=1145, distance=2153.0),
    _flight(5, dest="SJU", sched_arr_time=1320, distance=1598.0),
    _flight(6, hour=20, minute=0, time_hour="2013-07-05T00:00:00Z", sched_arr_time=5, tailnum="N1"),
]
WEATHER = [_observation(5), _observation(6, precip=0.5), _observation(7, precip=0.1), _observation(8, visib=1.0),
           *(_observation(hour) for hour in range(9, 15))]
PLANES = [{"tailnum": "N1", "year": 2001, "manufacturer": "AIRBUS", "seats": 180}]
AIRPORTS = [{"faa": "MIA", "lat": 25.8, "lon": -80.3, "tz": -5, "dst": "A"},
            {"faa": "PHX", "lat": 33.4, "lon": -112.0, "tz": -7, "dst": "N"}]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> dict[int, dict[str, Any]]:
    """What the query yields, by flight number."""
    sources = {"flights": FLIGHTS, "weather": WEATHER, "planes": PLANES, "airports": AIRPORTS}
    with result_settings(spark), tables(spark, {name: _frame(spark, name, values) for name, values in sources.items()}):
        found = run_query(spark, CONFIG).rows.collect()
    return {_unpack(row["row_id"])["flight"]: row.asDict() for row in found}


def _frame(spark: SparkSession, name: str, values: list[dict[str, Any]]) -> DataFrame:
    """A table with the columns and types that the config declares; moments are given as texts."""
    columns = CONFIG.sources[name].columns
    schema = ", ".join(f"{column} {'string' if kind == 'timestamp' else kind}" for column, kind in columns.items())
    frame = spark.createDataFrame([tuple(value[column] for column in columns) for value in values], schema)
    return frame.selectExpr(*(f"CAST({column} AS {kind}) AS {column}" for column, kind in columns.items()))


def _unpack(row_id: int) -> dict[str, Any]:
    """The flight that a row id packs."""
    rest, origin = divmod(row_id, 3)
    rest, carrier = divmod(rest, 36 * 36)
    hour, flight = divmod(rest, 10_000)
    digits = string.digits + string.ascii_uppercase
    return {"hour": hour, "flight": flight, "carrier": digits[carrier // 36] + digits[carrier % 36],
            "origin": ("EWR", "JFK", "LGA")[origin]}


def test_a_row_id_tells_which_flight_it_is(rows: dict[int, dict[str, Any]]) -> None:
    assert _unpack(rows[4]["row_id"]) == {"hour": 1372942800 // 3600, "flight": 4, "carrier": "9E", "origin": "LGA"}
    assert len({row["row_id"] for row in rows.values()}) == len(FLIGHTS)


def test_late_is_more_than_fifteen_minutes_and_unknown_for_cancelled_flights(rows: dict[int, dict[str, Any]]) -> None:
    assert {flight: row["late"] for flight, row in rows.items()} == {1: 1, 2: 0, 3: None, 4: 0, 5: 0, 6: 0}


def test_the_weather_is_that_of_the_hour_before_the_departure_hour(rows: dict[int, dict[str, Any]]) -> None:
    assert rows[1]["temp"] == 50 + 12  # departs 9:30 in New York, 13:30 UTC: what was seen at 12:00, not at 13:00
    assert rows[1]["dew_spread"] == 62 - 60
    assert (rows[1]["visib"], rows[1]["visib_6h"]) == (10.0, 1.0)  # the fog of 8:00 lifted, and is not forgotten yet
    assert rows[1]["rain"] == 0.0
    assert rows[1]["rain_6h"] == pytest.approx(1.0986, abs=1e-4)  # ln(1 + 20 x 0.1): 7:00 to 12:00, so without the cloudburst of 6:00
    assert (rows[1]["wind_east"], rows[1]["wind_north"], rows[1]["wind_gust"]) == (pytest.approx(10), pytest.approx(0, abs=1e-9), 10)
    assert rows[4]["temp"] is None  # no observation at LaGuardia


def test_planned_flights_are_counted_with_the_cancelled_ones(rows: dict[int, dict[str, Any]]) -> None:
    row = rows[1]
    assert (row["origin_day_flights"], row["city_hour_flights"], row["origin_hour_flights"], row["carrier_hour_flights"]) == (5, 5, 4, 3)
    assert [rows[flight]["plane_leg"] for flight in (1, 6)] == [1, 2]
    assert rows[3]["plane_leg"] is None


def test_minutes_from_gate_to_gate_heed_time_zones_and_summer_time(rows: dict[int, dict[str, Any]]) -> None:
    assert rows[1]["block_minutes"] == 160  # 9:30 to 12:10, both in Eastern summer time
    assert rows[4]["block_minutes"] == 315  # 9:30 (UTC-4) to 11:45 in Phoenix (UTC-7 all year)
    assert rows[5]["block_minutes"] == 230  # 9:30 to 13:20 in San Juan (UTC-4 all year, not in the table)
    assert rows[6]["block_minutes"] == 245  # 20:00 to 0:05 of the next day
    assert rows[4]["block_speed"] == pytest.approx(2153 / 315)


def test_planes_and_airports_are_joined_and_may_be_unknown(rows: dict[int, dict[str, Any]]) -> None:
    assert (rows[1]["plane_age"], rows[1]["plane_seats"], rows[1]["manufacturer"], rows[1]["dest_lat"]) == (12, 180, "AIRBUS", 25.8)
    assert (rows[2]["plane_age"], rows[5]["dest_lat"]) == (None, None)
    assert (rows[1]["weekday"], rows[1]["hour"]) == ("5", "9")  # Thursday
