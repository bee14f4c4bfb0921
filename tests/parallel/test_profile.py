"""Measuring blocks and links on real ranks, and planning with what they found."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.conf.schema import Config, TrainConfig, TransportName
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.planner.planner import best_layout, plan
from tests.support.configs import MINIMAL
from tests.support.token_dataset import write_token_dataset


def profiled(context: RankContext, document: dict[str, Any], url: str, places: list[tuple[str, int]] | None = None) -> Any:
    from sparkring.pipelines.training.profiling.profile import profile_rank

    return profile_rank(context, document, url, 1, places)


@pytest.mark.parallel
@pytest.mark.parametrize("hosts", [pytest.param((0, 0), id="two ranks of a host"), pytest.param((0, 0, 1, 1), id="two hosts of two ranks")])
def test_ranks_measure_what_a_plan_needs(hosts: tuple[int, ...], tmp_path: Path) -> None:
    from sparkring.pipelines.training.profiling.fit import measured
    from sparkring.pipelines.training.profiling.link_times import SIZES

    dataset = write_dataset(tmp_path, [[64]])
    config = Config.model_validate(MINIMAL | {
        "model": {"kind": "tabular", "hidden": [16, 8]}, "train": {"num_ranks": len(hosts), "batch_rows": 64, "memory_mb": 10}})
    ranks = run_on_ranks(len(hosts), profiled, config.model_dump(mode="json"), dataset.url, hosts=hosts)
    found = {(each["where"], each["kind"], each["part"], each["group"]): dict(each["seconds"]) for each in ranks[0]["links"]}
    places = ["local", "between"][:len(set(hosts))]
    parts = [("sum", "whole"), *((kind, part) for kind in get_args(TransportName) for part in ("whole", "send", "receive"))]
    assert found.keys() == {(where, *part, 2) for where in places for part in parts}
    assert all(samples.keys() == set(SIZES) and min(map(min, samples.values())) > 0 for samples in found.values())
    model, cluster = measured(config, dataset.manifest(1), ranks)
    assert [block.name for block in model.blocks] == ["embeddings", "layers.0", "layers.2", "layers.4"]
    assert all(block.forward.at(32) > 0 and block.backward.at(32) > 0 for block in model.blocks[1:])
    assert (cluster.ranks_per_host, model.optimizer_copies, all(block.update_s > 0 for block in model.blocks[1:])) == (2, 2, True)
    assert cluster.links.sum_local.at(2, 1e6) > 0
    assert (cluster.links.sum_between.at(2, 1e6) > 0) == (len(places) == 2)
    assert model.shards == {}, "nothing to deal to shards in a network for tables"
    best = best_layout(model, cluster, world=len(hosts), batch_rows=64)
    assert TrainConfig.model_validate(best.section()).num_ranks <= len(hosts)


@pytest.mark.parallel
def test_a_decoder_is_measured_in_shards_too_and_known_machines_are_not_measured_again(tmp_path: Path) -> None:
    from sparkring.pipelines.training.profiling.fit import measured
    from sparkring.pipelines.training.profiling.profile import host_kind

    dataset = write_token_dataset(tmp_path, [64])
    config = Config.model_validate(MINIMAL | {"model": {"kind": "text", "width": 8, "layers": 1, "heads": 2},
                                              "train": {"num_ranks": 2, "batch_rows": 64, "memory_mb": 10}})
    document = config.model_dump(mode="json")
    ranks = run_on_ranks(2, profiled, document, dataset.url, [("another machine", 0), (host_kind(torch.device("cpu")), 0)])
    model, cluster = measured(config, dataset.manifest(1), ranks)
    assert list(model.shards) == [2]
    whole, half = model.blocks[1], model.shards[2][1]
    assert whole.parameter_bytes / 2 < half.parameter_bytes < 0.6 * whole.parameter_bytes, "norms are on both"
    assert half.forward.at(32) > 0
    assert {each.candidate.shards for each in plan(model, cluster, world=2, batch_rows=64)} == {1, 2}
    before = [(rank["machine"], 0) for rank in ranks]
    assert run_on_ranks(2, profiled, document, dataset.url, before) == [None, None]
    apart = run_on_ranks(2, profiled, document, dataset.url, before, hosts=(0, 1))
    assert [rank["hosts"] for rank in apart] == [[0, 1]] * 2, "of machines that are known, but one a rank now"
