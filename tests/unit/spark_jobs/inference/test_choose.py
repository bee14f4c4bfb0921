"""What is chosen for columns with given figures. The figures themselves: tests/spark/test_inference.py."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
import yaml
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    TimestampType,
)

from sparkring.errors import SourceError
from sparkring.spark_jobs.inference.choose import Choice, Choices, choose
from sparkring.spark_jobs.inference.facts import ColumnFacts, TableFacts
from sparkring.spark_jobs.inference.sections import as_yaml, features_of, names_in_query


def column(name: str = "x", kind: DataType | None = None, **figures: Any) -> ColumnFacts:
    usual: dict[str, Any] = {"rows": 10_000, "nulls": 0, "distinct": 500, "low": 0.5, "high": 9.5,
                             "labels_by_value": 1_000, "labels_seen": 2, "labels_at_null": 2}
    return ColumnFacts(name=name, type=kind or DoubleType(), **usual | figures)


LABEL = column("late", BooleanType(), distinct=2, low=False, high=True, whole=True)
NUMBER_LABEL = column("price", distinct=5_000)


def chosen(*columns: ColumnFacts, label: ColumnFacts = LABEL) -> Choices:
    return choose(TableFacts((*columns, column("usable")), label))


@pytest.mark.parametrize(("found", "use"), [
    pytest.param(column(), "numeric", id="a number"),
    pytest.param(column(kind=BooleanType(), distinct=2, labels_by_value=4), "numeric", id="a truth value"),
    pytest.param(column(kind=StringType(), distinct=12, labels_by_value=24), "categorical", id="a text of few values"),
    pytest.param(column(kind=StringType(), distinct=4_000, labels_by_value=5_000, mean_length=8), "hashed", id="a text of many values"),
    pytest.param(column(kind=StringType(), distinct=8_000, labels_by_value=9_000, mean_length=90), "left out", id="free text"),
    pytest.param(column(kind=DateType(), low=date(2013, 1, 1), high=date(2013, 12, 31)), "moments", id="a date"),
    pytest.param(column(kind=TimestampType(), distinct=9_900, low="2013-01-01 00:00:00", high="2014-01-01 00:00:00"), "moments",
                 id="a moment"),
    pytest.param(column(kind=BinaryType(), mean_length=900), "image", id="bytes"),
    pytest.param(column(kind=ArrayType(DoubleType())), "left out", id="an array"),
    pytest.param(column(kind=LongType(), distinct=9_800, labels_by_value=9_800), "left out", id="a number of its own for each row"),
    pytest.param(column(kind=StringType(), distinct=9_800, labels_by_value=9_800), "left out", id="a name of its own for each row"),
    pytest.param(column(distinct=9_800, labels_by_value=9_800), "numeric", id="a measured number, which differs in each row"),
    pytest.param(column(distinct=1), "left out", id="one value"),
    pytest.param(column(kind=StringType(), distinct=3, labels_by_value=3, labels_seen=1), "categorical",
                 id="a text, and the other label is rare"),
    pytest.param(column(distinct=1, nulls=4_000), "numeric", id="one value or none, which says something"),
    pytest.param(column(distinct=0, nulls=10_000, low=None, high=None), "left out", id="no value"),
])
def test_a_column_is_used_by_its_kind(found: ColumnFacts, use: str) -> None:
    choice = chosen(found).columns[0]
    assert choice.use == use
    assert not choice.leaks


@pytest.mark.parametrize(("found", "label", "why"), [
    pytest.param(column(equal_to_label=10_000), LABEL, "it equals late", id="a copy"),
    pytest.param(column(kind=StringType(), distinct=7, labels_by_value=7), LABEL, "each of its 7 values comes with one value of late",
                 id="a code for the label"),
    pytest.param(column(kind=StringType(), distinct=1, nulls=6_000, labels_by_value=1, labels_seen=1, labels_at_null=1), LABEL,
                 "it has a value for one value of late and none for the other", id="there for one label only"),
    pytest.param(column(apart=True), LABEL, "all its values where late is 1 lie on one side of those where it is 0",
                 id="what the label was cut from"),
    pytest.param(column(correlation=0.99995), NUMBER_LABEL, "its correlation with price is 1.0000: nearly a copy in other units",
                 id="other units"),
    pytest.param(column(nulls=300, nulls_without_label=300), column("late", BooleanType(), distinct=2, low=False, high=True, nulls=300),
                 "it is null exactly where late is, so it becomes known with it", id="known with the label"),
])
def test_a_column_that_tells_the_label_is_left_out_and_named(found: ColumnFacts, label: ColumnFacts, why: str) -> None:
    choice = chosen(found, label=label).columns[0]
    assert (choice.use, choice.leaks, choice.why) == ("left out", True, why)


@pytest.mark.parametrize(("label", "task"), [
    pytest.param(LABEL, "binary", id="a truth value"),
    pytest.param(column("y", LongType(), distinct=2, low=0, high=1, whole=True), "binary", id="0 and 1"),
    pytest.param(column("y", DoubleType(), distinct=2, low=0.0, high=1.0, whole=True), "binary", id="0.0 and 1.0, as Spark ML has it"),
    pytest.param(column("y", LongType(), distinct=2, low=1, high=2, whole=True), "multiclass", id="1 and 2"),
    pytest.param(column("y", StringType(), distinct=2, low="no", high="yes"), "multiclass", id="yes and no"),
    pytest.param(column("y", LongType(), distinct=5_000, low=0, high=9_999, whole=True), "regression", id="whole numbers of many values"),
    pytest.param(column("y", DoubleType(), distinct=50, low=0.0, high=9.5), "regression", id="fractions"),
])
def test_the_label_decides_the_task(label: ColumnFacts, task: str) -> None:
    assert chosen(label=label).task == task


@pytest.mark.parametrize(("label", "message"), [
    pytest.param(column("y", distinct=1, low=0, high=0), "the label y has the value 0 in all 10,000 rows; there is nothing to learn",
                 id="one value"),
    pytest.param(column("y", distinct=0, nulls=10_000), "the label y is null in all 10,000 rows; there is nothing", id="no value"),
    pytest.param(column("y", rows=0), "the table has no rows; give one", id="no rows"),
    pytest.param(column("y", StringType(), distinct=9_000), "a text of about 9,000 values, and at most 100 are taken", id="free text"),
    pytest.param(column("y", DateType()), "of type date, which cannot be predicted; make a number", id="a date"),
])
def test_a_label_that_cannot_be_learned_is_refused(label: ColumnFacts, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        chosen(label=label)


def test_a_table_without_a_usable_column_is_refused_with_the_reasons() -> None:
    with pytest.raises(SourceError, match=r"left to learn late from: id \(nearly every row .*\), one \(it is 3 in every row\); give"):
        choose(TableFacts((column("id", LongType(), distinct=9_990, labels_by_value=9_990), column("one", distinct=1, low=3)), LABEL))


def test_columns_that_a_person_named_are_used_whatever_they_say_of_the_label() -> None:
    found = (column("copy", equal_to_label=10_000), column("id", LongType(), distinct=9_900), column("empty", nulls=10_000))
    assert [each.use for each in choose(TableFacts(found, LABEL), named=True).columns] == ["numeric", "numeric", "left out"]


@pytest.mark.parametrize(("lengths", "use"), [((3, 3), "elements"), ((2, 3), "left out"), ((0, 0), "left out"), ((5_000,) * 2, "left out")])
def test_arrays_of_one_length_are_taken_apart_where_the_caller_does_it(lengths: tuple[int, int], use: str) -> None:
    facts = TableFacts((column("pair", ArrayType(DoubleType()), lengths=lengths), column("usable")), LABEL)
    assert choose(facts, arrays=True).columns[0].use == use
    assert choose(facts).columns[0].use == "left out"


def test_the_yaml_reads_back_as_what_was_chosen_and_says_why() -> None:
    choices = Choices("late", "binary", "0 or 1", (
        Choice("air temp", "numeric", "double from -3.5 to 40.0"), Choice("gust", "numeric", "double, null in 30%", null_share=0.3),
        Choice("on", "categorical", "text of 3 values", distinct=3), Choice("tail", "hashed", "text of about 4,000 values", distinct=4_000),
        Choice("day", "moments", "date", is_date=True), Choice("arr_delay", "left out", "it equals late", leaks=True)))
    text = as_yaml(choices, name="my flights", source={"path": "a: b.csv", "format": "csv"}, names={}, workspace="runs/x")
    read = yaml.safe_load(text)
    assert read["prepare"]["features"] == features_of(choices) == {
        "numeric": ["air temp", {"column": "gust", "indicator": True}], "categorical": ["on"],
        "moments": [{"column": "day", "numbers": ["days"], "waves": ["day_of_week", "day_of_year"]}],
        "hashed": [{"column": "tail", "ids": 8192}]}
    assert read["prepare"]["sources"] == {"my flights": {"path": "a: b.csv", "format": "csv"}}
    assert read["prepare"]["query"] == "SELECT * FROM `my flights`"
    assert "  #   arr_delay: it equals late" in text
    assert "- air temp  # double from -3.5 to 40.0" in text


def test_a_name_that_a_dataset_cannot_have_gets_another_in_the_query() -> None:
    names = names_in_query(["class", "Air temp", "air_temp", "air.temp", "2024", "_id", "a`b", "m\u00b2", "?", "km"])
    assert names == {"class": "c_class", "Air temp": "Air_temp_2", "air_temp": "air_temp", "air.temp": "air_temp_3", "2024": "c_2024",
                     "_id": "id", "a`b": "a_b", "m\u00b2": "m", "?": "c", "km": "km"}
    query = yaml.safe_load(as_yaml(Choices("y", "binary", "0 or 1", ()), name="t", source={}, names=names, workspace="runs/x"))
    assert query["prepare"]["query"].startswith("SELECT `class` AS `c_class`, `Air temp` AS `Air_temp_2`, `air_temp`, `air.temp` AS ")
    assert query["prepare"]["query"].endswith(", `a``b` AS `a_b`, `m\u00b2` AS `m`, `?` AS `c`, `km` FROM t")
    same = as_yaml(Choices("y", "binary", "0 or 1", ()), name="t", source={}, names={"y": "y"}, workspace="runs/x")
    assert "  query: SELECT * FROM t\n" in same


@pytest.mark.parametrize("line_break", ["\n", "\r", "\x85", "\u2028", "\x00"])
def test_texts_from_the_data_stay_in_their_comments(line_break: str) -> None:
    evil = line_break.join(["x", "train: {epochs: 0}", "", "prepare: {}", "y" * 10_000])
    choices = Choices(evil, "binary", evil, (Choice(f"{evil}1", "moments", evil, is_date=True), Choice(f"{evil}2", "numeric", evil),
                                             Choice(f"{evil}3", "image", evil), Choice(f"{evil}4", "left out", evil)))
    text = as_yaml(choices, name="rows", source={"path": "a.csv", "format": "csv"}, names={}, workspace="runs/x")
    read = yaml.safe_load(text)
    assert read["train"] == {"num_ranks": 2, "epochs": 10, "early_stopping": {"patience_epochs": 3}}
    assert read["prepare"]["label"] == evil
    assert read["prepare"]["features"] == features_of(choices)
    assert f"# x train: {{epochs: 0}} prepare: {{}} {'y' * 100}" in text
    assert max(len(line.rpartition(" # ")[2]) for line in text.splitlines()) < 500
