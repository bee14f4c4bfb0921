"""The interface between the supervisor and the rings of a run: Spark's in ``spark_jobs/train.py``, a fake one in tests."""

from __future__ import annotations

from typing import Protocol

from sparkring.conf.schema import Config
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.spark_jobs.recovery.stop import StopRequest


class Ring(Protocol):
    """The rings of one run, as the supervisor starts and observes them."""

    def slots(self) -> int | None:
        """Ranks that could run at once now; None if that cannot be known."""
        ...

    def grows_on_demand(self) -> bool:
        """Whether slots appear only once ranks wait for them (dynamic allocation)."""
        ...

    def run(self, config: Config, left_out: tuple[str, ...], *, stop: StopRequest) -> TrainSummary:
        """Run one generation with this config, on no host of ``left_out``.

        Raises:
            Stopped: ``stop`` was asked for before ranks were started.
        """
        ...

    def ask_to_stop(self) -> bool:
        """Have the running generation save and end after its current step; returns whether there is one that will."""
        ...

    def committed(self) -> int:
        """Optimizer steps of the latest checkpoint; -1 if there is none."""
        ...

    def steps_of(self, rank: int) -> int:
        """Optimizer steps that a rank of the last generation had done since the run began; -1 if it had not started."""
        ...
