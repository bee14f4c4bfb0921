"""``train.ring``: how gradients are summed between hosts, what that goes together with, and which runs it tells apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.datasets import write_dataset
from sparkring.conf.schema import Config, TrainConfig
from sparkring.spark_jobs.run.identity import name_of
from tests.support.training import train_config

BF16 = {"allreduce": "auto", "wire": "bf16"}


@pytest.mark.parametrize(("asked", "message"), [
    ({"ring": {"wire": "bf16"}}, "allreduce=horovod has none; set train.ring.allreduce to auto"),
    ({"ring": {"allreduce": "tree", "device": "cuda"}}, "NCCL sums on GPUs; leave train.ring.allreduce out"),
    ({"ring": BF16, "strategy": "local_sgd"}, "train.strategy=local_sgd sends models; set train.ring.wire to exact"),
    ({"ring": {"allreduce": "ring"}, "strategy": "stale_sync"}, "train.strategy=stale_sync has none; leave train.ring.allreduce out"),
    ({"ring": BF16, "precision": "float64"}, "train.precision=float64 is for comparing runs exactly"),
    ({"ring": {"allreduce": "star"}}, "'ring', 'tree' or 'two_level'")], ids=str)
def test_what_makes_no_sense_is_refused_with_the_reason(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig.model_validate(asked)


def test_a_wire_needs_several_hosts(tmp_path: Path) -> None:
    config = train_config(tmp_path, train={"ring": BF16}).model_dump()
    assert Config.model_validate(config).train.ring.wire == "bf16", "the control"
    with pytest.raises(ValidationError, match=r"spark.master=local\[2\] is one host; set train.ring.wire to exact"):
        Config.model_validate(config | {"spark": {"master": "local[2]"}})


def test_only_a_wire_that_rounds_tells_runs_apart(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "dataset", ([30, 20],)).manifest(1)

    def name(**ring: Any) -> str:
        return name_of(train_config(tmp_path, train={"ring": ring}), manifest)

    assert name() == name(allreduce="auto") == name(allreduce="two_level")
    assert len({name(), name(**BF16), name(allreduce="auto", wire="fp16")}) == 3
    assert name(**BF16) == name(allreduce="ring", wire="bf16")
