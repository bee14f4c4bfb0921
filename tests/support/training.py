"""Training runs for tests: configs on top of the minimal one, and what a run has come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.linalg import norm
from safetensors.torch import load
from torch import Tensor

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.pipelines.training.checkpoints.writer import CheckpointWriter
from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.pipelines.training.job.model_files import load_card, load_weights
from sparkring.pipelines.training.strategies.step import train_step
from tests.support import seams
from tests.support.configs import MINIMAL

DEADLINE_S = 90.0


def train_config(workspace: Path, **sections: Any) -> Config:
    """The minimal config under ``workspace`` with these sections, e.g. ``train={"epochs": 1}``."""
    return parse_config({**MINIMAL, "workspace": str(workspace), **sections}, origin="test")


def weights_of_run(folder: Path) -> dict[str, Tensor]:
    """The weights that the only run in ``folder`` committed as its model; ranks without a driver train in ``folder/run``."""
    (run,) = (path for path in (folder / "run", *(folder / "runs").glob("*/")) if (path / "model").is_dir())
    return load(load_weights(str(run), load_card(str(run))))


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Relative to the second, of any tensor; both have the same names."""
    assert one.keys() == other.keys()
    return max(float(norm(one[name] - other[name]) / norm(other[name])) for name in other)


def await_condition(condition: Callable[[], Any], what: str, *, within_s: float = DEADLINE_S) -> Any:
    """Wait until ``condition`` gives something, and return that."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come about within {within_s:g} s")


def begin_checkpoints_on_the_dot() -> None:
    """In this process, have each checkpoint begun when its steps are up, and waited for: so a test knows which ones there are."""
    seams.replace(seams.PACE_LEAD, lambda *_: 0)
    seams.replace(seams.PACE_HOLDS, lambda *_: True)


def before_each_step(act: Callable[[int, Sequence[CheckpointWriter]], None]) -> None:
    """In this process, have ``act`` done before each training step: told of the steps done so far, and of who has begun checkpoints."""
    done, writers, begin = 0, list[CheckpointWriter](), CheckpointWriter.begin

    def step(*args: Any, **settings: Any) -> Any:
        nonlocal done
        act(done, writers)
        done += 1
        return train_step(*args, **settings)

    def noted(self: CheckpointWriter, *args: Any, **named: Any) -> None:
        writers.append(self)
        begin(self, *args, **named)

    seams.replace(seams.STRATEGY_TRAIN_STEP, step)
    seams.replace(seams.CHECKPOINT_WRITER_BEGIN, noted)


def records_in(folder: Path, kind: str = "step") -> list[Record]:
    """The records of one kind of the run in ``folder/run``, which ranks without a driver have written."""
    return [record for record in read_events(str(folder / "run")) if record["event"] == kind]


def events_of(config: Config, kind: str) -> list[Record]:
    """The records of one kind that the run of ``config`` has written so far."""
    return [record for record in read_events(config.run_url) if record["event"] == kind]
