"""What is advised about a column of another type than its role takes is followed here: Spark computes every expression on a column of
every type that it is advised for, and each way is prepared once.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import zip_longest
from operator import or_
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StringType

from sparkring.errors import SourceError
from sparkring.spark_jobs.etl.columns.advice import advise, conversions, settings
from sparkring.spark_jobs.etl.columns.expressions import EXACT_TEXT_TYPES, TEMPORAL_TYPES
from sparkring.spark_jobs.etl.columns.roles import Role, roles_of_query
from sparkring.spark_jobs.etl.examples import run_query, tables
from sparkring.spark_jobs.etl.fitted import fitted_examples
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.spark.session import result_settings
from tests.support.etl_tables import COLUMNS, TEST_FROM, VALIDATION_FROM, etl_config

pytest_plugins = ["tests.support.spark_sessions"]

IMAGE = base64.b64encode(cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1].tobytes()).decode()
TYPES = {
    "bigint": "id", "int": "CAST(id AS INT)", "double": "CAST(id AS DOUBLE)", "decimal": "CAST(id AS DECIMAL(20, 2))",
    "boolean": "id % 2 = 0", "date": "CAST(day AS DATE)", "timestamp": "day", "timestamp_ntz": "CAST(day AS TIMESTAMP_NTZ)",
    "binary": "CAST(CAST(id AS STRING) AS BINARY)", "array": "array(id)", "map": "map('a', id)", "struct": "named_struct('a', id)",
    "variant": "parse_json(CAST(id AS STRING))", "interval": "make_dt_interval(0, CAST(id AS INT))", "void": "NULL"}
"""A column of each type but text, made of a trip's id and day."""
TEXTS = {"prepare.label": "IF(id % 2 = 0, 'yes', 'no')", "prepare.features.moments": "date_format(day, 'yyyy-MM-dd HH:mm:ss')",
         "prepare.split.column": "date_format(day, 'yyyy-MM-dd HH:mm:ss')", "prepare.features.image.column": f"'{IMAGE}'",
         "array of numbers": "CONCAT('[', id, ']')"}
"""Texts that meet the condition of the advice, by the role's key or what it expects; else the id."""
TIME = {"column": "part", "validation_from": VALIDATION_FROM, "test_from": TEST_FROM}
SPLITS: list[dict[str, Any]] = [TIME, {"by": "column", "column": "part"}, {"by": "hash", "column": "part"}]
FEATURES: dict[str, Any] = {
    "numeric": ["n"], "categorical": ["c"], "moments": [{"column": "m", "numbers": ["year"]}], "buckets": [{"column": "b", "edges": [9]}],
    "hashed": [{"column": "h", "ids": 8}], "image": {"column": "i"},
    "raw": [{"column": "r", "dtype": "float64"}, {"column": "a", "dtype": "float64", "shape": [1]}]}


class Case(NamedTuple):
    """A column that its role does not take."""

    role: Role
    kind: str
    sample: str
    """The column in SQL."""
    type: DataType

    def with_sample(self, **instead: str) -> Case:
        """The same, made of other expressions than the trip's ``id`` or ``day``."""
        return self._replace(sample=re.sub(r"\b(id|day)\b", lambda found: instead.get(found[0], found[0]), self.sample))

    def named(self, name: str) -> Case:
        """The same, of a column of that name."""
        return self._replace(role=self.role._replace(column=name))


def _roles(folder: Path) -> dict[tuple[object, ...], Role]:
    """Every role that a column of a table can have."""
    found: dict[tuple[object, ...], Role] = {}
    for split in SPLITS:
        for task in ("binary", "multiclass"):
            for role in roles_of_query(etl_config(folder, task=task, split=split, features=FEATURES).prepare):
                found[role.key, role.kinds] = role
    for role in roles_of_query(etl_config(folder, task="next_token", label="", split={"by": "random"}, features={
            "tokens": {"column": "text", "document": "name"}}).prepare)[:2]:
        found[role.key, role.kinds] = role
    return found


@pytest.fixture(scope="module")
def cases(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """All pairs of a role and a type that it does not take."""
    folder = tmp_path_factory.mktemp("cases")
    view = "SELECT 1L AS id, TIMESTAMP'2020-02-01 00:00:00' AS day"
    made = [(role, kind, sample) for role in _roles(folder).values()
            for kind, sample in {"string": TEXTS.get(role.key, TEXTS.get(role.expected, "CAST(id AS STRING)")), **TYPES}.items()]
    types = spark.sql(f"SELECT {', '.join(f'{sample} AS c{place}' for place, (*_, sample) in enumerate(made))} FROM ({view})").schema
    return [Case(role, kind, sample, types[place].dataType) for place, (role, kind, sample) in enumerate(made)
            if not isinstance(types[place].dataType, role.kinds)]


def _converted(cases: Iterable[Case]) -> Iterator[tuple[Case, str]]:
    """Each case as a column of a name of its own, with each of the expressions that the advice names."""
    for case in cases:
        for number in range(len(conversions(case.role, case.type))):
            kinds = f"{case.role.kinds[0].__name__}{len(case.role.kinds)}"
            name = f"{case.role.key.rpartition('.')[2]}_{case.role.column}_{kinds}_{case.kind}_{number}"
            one = case.named(name)
            expression = conversions(one.role, case.type)[number].expression
            assert f"use {expression} AS {name} in the query" in advise(one.role, case.type)
            yield one, expression


def _once(columns: Iterable[tuple[Case, str]]) -> Iterator[tuple[Case, str]]:
    """Each expression of a role once, of the first type that it is advised for."""
    seen: set[tuple[object, ...]] = set()
    for case, expression in columns:
        what = (case.role.key, case.role.kinds, expression.replace(case.role.column, "c"))
        if what not in seen:
            seen.add(what)
            yield case, expression


def _query(*columns: tuple[Case, str]) -> str:
    inner = ", ".join(f"{case.sample} AS {case.role.column}" for case, _ in columns)
    made = ", ".join(f"{expression} AS {case.role.column}_made" for case, expression in columns)
    return f"SELECT *, {made} FROM (SELECT *, {inner} FROM trips)"


def _of(cases: list[Case], *keys: str) -> list[Case]:
    return [case for case in cases if case.role.key in keys]


def test_every_expression_can_be_computed_and_has_a_type_that_the_role_takes(spark: SparkSession, cases: list[Case]) -> None:
    columns = list(_converted(cases))
    assert len(columns) > 90
    view = "SELECT 1L AS id, TIMESTAMP'2020-02-01 00:00:00' AS day"
    made = spark.sql(_query(*columns).replace("FROM trips", f"FROM ({view})"))
    wrong = [(case.role.key, case.kind, expression) for case, expression in columns
             if not isinstance(made.schema[f"{case.role.column}_made"].dataType, case.role.kinds)]
    assert wrong == []
    row = made.collect()[0]
    assert [case for case, _ in columns if row[f"{case.role.column}_made"] is None] == []


def test_where_there_is_no_way_the_advice_is_another_column(cases: list[Case]) -> None:
    for case in cases:
        if not conversions(case.role, case.type) and not settings(case.role, case.type):
            assert "name another column" in advise(case.role, case.type)


def test_the_features_that_follow_the_advice_can_be_prepared(spark: SparkSession, tmp_path: Path, cases: list[Case]) -> None:
    keys = {"numeric": "prepare.features.numeric", "categorical": "prepare.features.categorical", "moments": "prepare.features.moments",
            "buckets": "prepare.features.buckets", "hashed": "prepare.features.hashed", "raw": "prepare.features.raw",
            "image": "prepare.features.image.column"}
    columns = list(_once(_converted(_of(cases, *keys.values()))))
    of = {key: [f"{case.role.column}_made" for case, _ in columns if case.role.key == keys[key]] for key in keys}
    shapes = {f"{case.role.column}_made": [1] if case.role.expected.startswith("array") else [] for case, _ in columns}
    [image] = of["image"]
    features = {
        "numeric": of["numeric"], "image": {"column": image},
        "categorical": [*of["categorical"], "city"],  # a text, which the advice about a number names
        "moments": [{"column": name, "numbers": ["year"]} for name in (*of["moments"], "day")],
        "buckets": [{"column": name, "edges": [9]} for name in of["buckets"]],
        "hashed": [{"column": name, "ids": 8} for name in of["hashed"]],
        "raw": [{"column": name, "dtype": "float64", "shape": shapes[name]} for name in of["raw"]]}
    query = _query(*columns).replace("SELECT *,", "SELECT id AS row_id, day, late, city,", 1)
    result = prepare(etl_config(tmp_path, query=query, features=features, min_row_groups=1, num_files=1), spark=spark)
    assert sum(result.rows.values()) == 891


def _ids(cases: list[Case]) -> Iterator[dict[str, Any]]:
    shared = {"boolean", "date", "timestamp", "timestamp_ntz"}  # several trips have the same, and the condition says so
    for case, expression in _once(_converted(case for case in _of(cases, "prepare.row_id") if case.kind not in shared)):
        yield {"row_id": f"{case.role.column}_made", "columns": (case, expression)}


def _labels(cases: list[Case]) -> Iterator[dict[str, Any]]:
    """Few labels, so that train rows have each."""
    two_days = "IF(id % 2 = 0, TIMESTAMP'2020-01-30 00:00:00', TIMESTAMP'2020-01-31 00:00:00')"
    few = [case.with_sample(id="(id % 2)", day=two_days) for case in _of(cases, "prepare.label")]
    for case, expression in _once(_converted(few)):
        task = "binary" if case.role.expected.startswith("int") else "multiclass"
        yield {"task": task, "label": f"{case.role.column}_made", "columns": (case, expression)}
    for case in few:
        for setting in settings(case.role, case.type):
            yield {"task": setting.rpartition(" ")[2], "label": "unchanged", "columns": (case.named("unchanged"), "1")}


def _splits(cases: list[Case]) -> Iterator[dict[str, Any]]:
    by_kinds: dict[object, dict[str, Any]] = {TEMPORAL_TYPES: TIME, (StringType,): SPLITS[1], EXACT_TEXT_TYPES: SPLITS[2]}
    keys = {TEMPORAL_TYPES: "unix_seconds(day)", (StringType,): "(id % 3)", EXACT_TEXT_TYPES: "id"}
    split = [case.with_sample(id=keys[case.role.kinds]) for case in _of(cases, "prepare.split.column")]
    for case, expression in _once(_converted(split)):
        yield {"split": by_kinds[case.role.kinds] | {"column": f"{case.role.column}_made"}, "columns": (case, expression)}
    unchanged = next(case for case in split if settings(case.role, case.type))
    assert settings(unchanged.role, unchanged.type) == ["set prepare.split.by: time, with validation_from and test_from"]
    yield {"split": TIME | {"column": "kept"}, "columns": (unchanged.named("kept"), "1")}


def test_ids_labels_and_splits_that_follow_the_advice_can_be_prepared(spark: SparkSession, tmp_path: Path, cases: list[Case]) -> None:
    """Up to the writing, which they share with all others."""
    usual: dict[str, Any] = {"row_id": "id", "split": {"by": "random"}, "label": "late", "features": {"numeric": ["km"]}}
    followed = 0
    with _trips_in(spark, tmp_path):
        for chosen in zip_longest(_ids(cases), _labels(cases), _splits(cases)):
            ways = [dict(way) for way in chosen if way]
            columns = [way.pop("columns") for way in ways]
            config = etl_config(tmp_path, query=_query(*columns), **reduce(or_, ways, usual)).prepare
            with fitted_examples(run_query(spark, config), lambda _: None) as fitted:
                assert fitted.examples.count() > 800, columns
            followed += len(ways)
    assert followed >= 18


def test_advice_about_a_yes_no_label_names_its_values_and_holds(spark: SparkSession, tmp_path: Path) -> None:
    query = "SELECT id AS row_id, day, km, IF(late = 1, 'Yes', 'it\\'s no') AS visited FROM trips"
    config = etl_config(tmp_path, query=query, label="visited", features={"numeric": ["km"]})
    with _trips_in(spark, tmp_path):
        with pytest.raises(SourceError, match=r"prepare\.label must be int \(0 or 1\); set prepare\.task: multiclass, or use ") as raised:
            run_query(spark, config.prepare)
        [expression] = re.findall(r"use (CAST\(.*? AS INT\)) AS visited in the query \(which makes 'it\\'s no' 0\)", str(raised.value))
        followed = config.prepare.model_copy(update={"query": f"SELECT * EXCEPT (visited), {expression} AS visited FROM ({query})"})
        with fitted_examples(run_query(spark, followed), lambda _: None) as fitted:
            assert {row["visited"] for row in fitted.examples.select("visited").distinct().collect()} == {0, 1}


def test_advice_about_an_id_that_is_a_text_holds(spark: SparkSession, tmp_path: Path) -> None:
    query = "SELECT CONCAT('trip-', id) AS {} , day, km, late FROM trips"
    with _trips_in(spark, tmp_path):
        for name, advice in (("trip", "; leave prepare.row_id out"), ("row_id", "; give it another name in the query and leave")):
            config = etl_config(tmp_path, query=query.format(name), row_id=name, features={"numeric": ["km"]})
            with pytest.raises(SourceError, match=advice):
                run_query(spark, config.prepare)
        followed = etl_config(tmp_path, query=query.format("trip"), features={"numeric": ["km"]})
        with fitted_examples(run_query(spark, followed.prepare), lambda _: None) as fitted:
            assert fitted.examples.select("row_id").distinct().count() == 891


def test_advice_about_texts_among_numbers_holds(spark: SparkSession, tmp_path: Path) -> None:
    query = "SELECT id AS row_id, day, IF(id = 5, 'far', CAST(km AS STRING)) AS km, late FROM trips"
    with _trips_in(spark, tmp_path):
        config = etl_config(tmp_path, query=query, features={"numeric": ["km"]})
        with pytest.raises(SourceError, match=r"column km .* must be double; name it in prepare\.features\.categorical instead"):
            run_query(spark, config.prepare)
        followed = etl_config(tmp_path, query=query, features={"categorical": ["km"]}, min_category_rows=1)
        with fitted_examples(run_query(spark, followed.prepare), lambda _: None) as fitted:
            assert "far" in fitted.preprocessing.categorical[0].vocabulary


@contextmanager
def _trips_in(spark: SparkSession, folder: Path) -> Iterator[None]:
    """The trips as the query's table."""
    etl_config(folder)
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    trips = spark.read.csv(str(folder / "trips.csv"), header=True, nullValue="NA", schema=schema, enforceSchema=True)
    with result_settings(spark), tables(spark, {"trips": trips}):
        yield
