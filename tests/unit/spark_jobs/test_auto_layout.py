"""``train.parallel: auto``: the word in a config, what may stand beside it, and the layout that takes its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.datasets import write_dataset
from sparkring.conf.loading import load_config
from sparkring.conf.schema import TrainConfig
from sparkring.errors import ConfigError, LayoutRefused
from sparkring.models import networks
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.parallel.planner.cost_model import BlockProfile, Cluster, Hop, Line, LinkCosts, ModelProfile, SumCost
from sparkring.pipelines.parallel.planner.enumerate import Constraints
from sparkring.pipelines.parallel.planner.planner import best_layout
from sparkring.spark_jobs.auto_layout import (
    PROFILE,
    known_profile,
    layout_constraints,
    profile_subject,
    with_layout,
    with_planned_layout,
)
from tests.support import seams
from tests.support.configs import MINIMAL, write

BLOCKS = ModelProfile(blocks=tuple(
    BlockProfile(name=f"b{number}", forward=Line(0.0, 1.0), backward=Line(0.0, 2.0), parameter_bytes=1e6) for number in range(4)))
DEAR_SUMS = Cluster(links=LinkCosts(sum_local=SumCost(step=Line(1000.0)), hop_local={"sidecar": Hop(Line(1e-3))}), ranks_per_host=8)


@pytest.mark.parametrize("override", ["train.parallel=auto", "train.parallel.auto=true", "train.parallel={auto: true, micro_batches: 6}"])
def test_one_word_asks_for_it(tmp_path: Path, override: str) -> None:
    config = load_config(write(tmp_path, "tiny.yaml", MINIMAL | {"train": {"num_ranks": 4}}), [override])
    assert config.train.parallel.auto
    assert not config.train.parallel.pipelined
    assert TrainConfig.model_validate(config.train.model_dump(mode="json")) == config.train
    assert not load_config(write(tmp_path, "tiny.yaml", MINIMAL)).train.parallel.auto


@pytest.mark.parametrize(("given", "complaint"), [
    pytest.param("{auto: true, replicas: [2, 2], schedule: gpipe}",
                 r"train\.parallel=auto chooses train\.parallel\.schedule itself; leave", id="what it chooses"),
    pytest.param("{auto: true, shards: 2}", r"chooses train\.parallel\.shards itself; leave", id="shards of no replicas"),
    pytest.param("automatic", "train.parallel: ", id="another word"),
])
def test_what_contradicts_it_is_refused(tmp_path: Path, given: str, complaint: str) -> None:
    path = write(tmp_path, "tiny.yaml", MINIMAL | {"train": {"num_ranks": 4}})
    with pytest.raises(ConfigError, match=complaint):
        load_config(path, [f"train.parallel={given}"])


def test_the_planned_layout_takes_its_place_and_all_else_stays() -> None:
    train = TrainConfig(num_ranks=4, batch_rows=64, seed=5, parallel="auto")
    plan = best_layout(BLOCKS, DEAR_SUMS, world=4, batch_rows=64)
    assert len(plan.candidate.replicas) > 1
    found = with_layout(train, plan)
    assert (found.replicas, found.num_micro_batches) == (plan.candidate.replicas, plan.candidate.micro_batches)
    assert found.parallel.cut == plan.prediction.cut
    assert not found.parallel.auto
    assert found.model_copy(update={"parallel": train.parallel, "num_ranks": 4}) == train


def test_what_was_given_beside_it_stays_even_where_one_rank_does_all_of_it() -> None:
    train = TrainConfig.model_validate({"num_ranks": 1, "parallel": {"auto": True, "micro_batches": 6, "dynamic_shapes": True}})
    plan = best_layout(BLOCKS, DEAR_SUMS, world=1, batch_rows=64, fixed=Constraints(micro_batches=6))
    found = with_layout(train, plan).parallel
    assert (found.micro_batches, found.dynamic_shapes) == (6, True)


def test_stages_that_were_given_are_cut_by_time_and_so_that_they_fit() -> None:
    train = TrainConfig.model_validate({"num_ranks": 3, "parallel": {"auto": True, "replicas": [2, 1]}})
    slow_first = replace(BLOCKS, blocks=(replace(BLOCKS.blocks[0], forward=Line(0.0, 5.0), backward=Line(0.0, 10.0)), *BLOCKS.blocks[1:]))
    large_last = replace(BLOCKS, blocks=(*BLOCKS.blocks[:3], replace(BLOCKS.blocks[3], parameter_bytes=1e9)))
    tight = replace(DEAR_SUMS, memory_bytes=2.001e9)
    cuts = {}
    for name, model, cluster in (("even", BLOCKS, DEAR_SUMS), ("slow", slow_first, DEAR_SUMS), ("tight", large_last, tight)):
        plan = best_layout(model, cluster, world=3, batch_rows=64, fixed=layout_constraints(train))
        assert plan.candidate.replicas == (2, 1)
        cuts[name] = with_layout(train, plan).parallel.cut
    assert cuts == {"even": (3, 1), "slow": (2, 2), "tight": (3, 1)}
    fewer = best_layout(BLOCKS, DEAR_SUMS, world=2, batch_rows=64, fixed=layout_constraints(train))
    with pytest.raises(LayoutRefused, match=r"shards can be none here, on one host, and the model has 4 blocks; give other"):
        best_layout(BLOCKS, DEAR_SUMS, world=4, batch_rows=64, fixed=Constraints(replicas=(1, 1), shards=2))
    assert fewer.candidate.num_ranks <= 2, "where they take more ranks than there are, any layout may be chosen"


def _own(*layers: nn.Module) -> Callable[..., nn.Module]:
    def own(_shapes: object) -> nn.Module:
        return Whole(*layers)

    return own


class Whole(nn.Module):
    """Of numbers and categories."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, numeric: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        return numeric.sum(1) + categorical.sum(1)


def test_a_profile_holds_for_the_same_model_batch_and_ranks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "dataset", [[64]])
    path, store = write(tmp_path, "tiny.yaml", MINIMAL | {"train": {"num_ranks": 4}}), open_store(str(tmp_path / "run"))

    def known(*overrides: str) -> object:
        return known_profile(store, profile_subject(load_config(path, overrides), dataset.manifest(1)))

    assert known() is None, "never measured"
    store.put(PROFILE, json.dumps({"of": profile_subject(load_config(path), dataset.manifest(1)), "ranks": ["figures"]}).encode())
    assert known() == known("train.epochs=9", "train.ring.deadline_s=5", "train.parallel=auto") == ["figures"]
    for other in ("train.num_ranks=3", "train.batch_rows=99", "model.hidden=[8]", "train.optimizer.name=sgd",
                  "train.ring.threads_per_rank=2"):
        assert known(other) is None, other
    monkeypatch.setattr(seams.NETWORK_BUILDS, {})
    own = ("model={kind: tabular, network: own}",)
    networks.network(_own(nn.ReLU()))
    store.put(PROFILE, json.dumps({"of": profile_subject(load_config(path, own), dataset.manifest(1)), "ranks": ["figures"]}).encode())
    networks.network(_own(nn.ReLU()))
    assert known(*own) == ["figures"]
    for layers in ([nn.Tanh()], [nn.ReLU(), nn.Linear(4, 4)]):
        networks.network(_own(*layers))
        assert known(*own) is None, "a function of that name that makes something else"
    store.put(PROFILE, b"half of a docum")
    assert known() is None


def test_whoever_evaluates_later_takes_the_layout_that_was_chosen(tmp_path: Path) -> None:
    path, store = write(tmp_path, "tiny.yaml", MINIMAL | {"train": {"num_ranks": 4}}), open_store(str(tmp_path / "run"))
    automatic, given = load_config(path, ["train.parallel=auto"]), load_config(path)
    assert with_planned_layout(automatic, store) == automatic, "nothing was chosen yet"
    chosen = {"num_ranks": 2, "parallel": {"replicas": [1, 1], "micro_batches": 3}}
    store.put(PROFILE, json.dumps({"of": {}, "ranks": [], "chosen": chosen}).encode())
    planned = with_planned_layout(automatic, store).train
    assert (planned.num_ranks, planned.replicas, planned.num_micro_batches, planned.parallel.auto) == (2, (1, 1), 3, False)
    assert with_planned_layout(given, store) == given
