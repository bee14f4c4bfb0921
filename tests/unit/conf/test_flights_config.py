"""The shipped flights configs: nothing that is known only after departure can reach the model."""

from __future__ import annotations

import pytest

from sparkring.conf.loading import load_config

KNOWN_AFTER_DEPARTURE = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}
SHIPPED = ["base/flights", "local/flights", "local/flights-delay", "yarn/flights", "databricks/flights"]


@pytest.mark.parametrize("name", SHIPPED)
def test_what_happened_to_a_flight_is_read_for_its_label_only(name: str) -> None:
    config = load_config(name).prepare
    assert KNOWN_AFTER_DEPARTURE & set(config.sources["flights"].columns) == {"arr_delay"}
    uses = [line.strip() for line in config.query.splitlines() if "arr_delay" in line]
    assert [line.partition(",")[0] for line in uses] == ["CAST(t.arr_delay > 15 AS INT) AS late", "t.arr_delay AS delay"]
    assert config.label == ("delay" if name == "local/flights-delay" else "late")
    assert not {"late", "delay", *KNOWN_AFTER_DEPARTURE} & {*config.features.numbers, *config.features.categorical}


@pytest.mark.parametrize("name", SHIPPED)
def test_all_places_prepare_the_same_rows(name: str) -> None:
    base, here = load_config("base/flights").prepare, load_config(name).prepare
    assert (here.query, here.features, here.split) == (base.query, base.features, base.split)


def test_the_local_ring_fits_the_local_session() -> None:
    config = load_config("local/flights")
    assert config.spark.master == f"local[{config.train.num_ranks}]"


def test_barrier_rings_find_their_slots_on_yarn() -> None:
    config = load_config("yarn/flights")
    assert config.spark.conf["spark.dynamicAllocation.enabled"] == "false"
    assert int(config.spark.conf["spark.executor.instances"]) * int(config.spark.conf["spark.executor.cores"]) >= config.train.num_ranks
