"""The event records that the loop writes; their fields are described in events/writer.py."""

from __future__ import annotations

import math
import os
import socket

from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.data.order.rowhash import to_hex
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.loop.early_stopping import why_stopped
from sparkring.pipelines.training.loop.epoch_proof import StepProof
from sparkring.pipelines.training.loop.nonfinite import LEFT_OUT
from sparkring.pipelines.training.loop.positions import mean_loss
from sparkring.pipelines.training.loop.setup import RankSetup
from sparkring.pipelines.training.strategies.step import StepResult


class LoopRecords:
    """Writes one rank's records of a run's start, steps and epochs."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup, self._events = setup, setup.events
        self._sampled = 0
        """The step of this epoch whose timeline is kept."""

    def start(self, position: Position) -> None:
        """Write where this generation starts, and everything that its steps depend on."""
        setup, job, train, context = self._setup, self._setup.job, self._setup.config.train, self._setup.communicator.context
        self._events.write(
            "start", size=context.size, host=socket.gethostname(), pid=os.getpid(), device=context.device, lanes=job.lanes,
            seed=train.seed, batch_rows=train.step_rows, dataset_url=job.dataset_url, dataset_version=job.dataset_version,
            fold=setup.manifest.fold, content_id=setup.manifest.content_id, manifest_sha256=setup.version.manifest_sha256,
            optimizer=train.optimizer.name, peak_lr=train.optimizer.peak_lr(train.step_rows), strategy=train.strategy.kind,
            wire=train.ring.wire, reduction=setup.strategy.description, readers=setup.receipt_rank.num_ranks,
            shards=setup.layout.mesh.shards if setup.layout else 1, steps_per_epoch=setup.steps_per_epoch, epochs=train.epochs,
            epoch=position.epoch, step=position.step, resumed=position.receipts)

    def begin_epoch(self, position: Position) -> None:
        """Choose the step whose timeline is kept."""
        self._sampled = sampled_step(first=position.step, steps=self._setup.steps_per_epoch)

    def timeline(self, position: Position) -> None:
        """Write this rank's actions in the sampled step, if it follows a schedule."""
        record = self._setup.strategy.step_record() if position.step == self._sampled else None
        if record is not None:
            self._events.write("timeline", epoch=position.epoch, step=position.step, **record)

    def step(self, position: Position, batch: Batch, result: StepResult, proof: StepProof, *, rate: float, data_s: float,
             staleness: int | None = None) -> None:
        """Write the step at ``position``, with its receipt and, if it was dealt, the staleness of its update."""
        cost, left_out = result.cost, {"left_out": True} if result is LEFT_OUT else {}
        more = {name: value for name, value in (("staleness", staleness), ("sent_bytes", result.sent_bytes or None)) if value is not None}
        self._events.write(
            "step", epoch=position.epoch, step=position.step, rows=proof.rows, global_rows=batch.global_rows,
            loss=result.loss if math.isfinite(result.loss) else None, lr=rate, data_s=round(data_s, 6),
            compute_s=round(cost.compute_s, 6), comm_s=round(cost.comm_s, 6), digest=to_hex(proof.digest), **proof.receipt,
            **left_out, **more)

    def epoch(self, position: Position, validation: dict[str, float] | None, *, seconds: float) -> None:
        """Write the totals of the epoch before ``position`` and its held-out metrics; rank 0 only."""
        if self._setup.is_first:
            self._events.write("epoch", epoch=position.epoch - 1, seconds=round(seconds, 3), rows=position.rows,
                               train_loss=mean_loss(position), exact=True, digest=position.rows_digest, validation=validation)


    def stopped_early(self, position: Position) -> None:
        """Write that the run ends before its last epoch, and why; rank 0 only."""
        config = self._setup.config.train.early_stopping
        if self._setup.is_first and config is not None:
            self._events.write("stopped_early", epoch=position.epoch - 1, metric=config.metric, text=why_stopped(position, config))


def sampled_step(*, first: int, steps: int) -> int:
    """The step of an epoch whose timeline is kept: the second step, since the first one warms up, if its batch is full.

    Args:
        first: The step with which this epoch starts or resumes.
        steps: Steps of the epoch; the last one may have fewer rows.
    """
    return first + 1 if first + 1 < steps - 1 else first
