"""A batch as a worker of a schedule takes it: by the number that a micro-batch has over all replicas."""

from __future__ import annotations

from torch import Tensor

from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.training.strategies.step import Inputs


class MicroBatches:
    """One worker's micro-batches of a batch; they are dealt to the replicas of its stage round and round."""

    def __init__(self, batch: Batch, inputs: Inputs, *, replica: int, replicas: int) -> None:
        """Take this replica's rows.

        Args:
            batch: Of the replica's loader.
            inputs: What of it goes where.
            replica: This worker's.
            replicas: Of its stage.
        """
        self._inputs, self._replica, self._replicas = inputs, replica, replicas
        self._parts, self._rows, self._epoch = batch.micro_batches(), batch.micro_batch_rows, batch.epoch

    def inputs(self, micro_batch: int) -> dict[str, Tensor]:
        """What the first chunk takes."""
        return self._inputs.of(self._parts[self._place(micro_batch)], epoch=self._epoch)

    def labels(self, micro_batch: int) -> Tensor:
        """What the last chunk is to predict."""
        return self._inputs.labels(self._parts[self._place(micro_batch)])

    def rows(self, micro_batch: int) -> int:
        """How many rows it has; known also to a stage that reads none of them."""
        return self._rows[self._place(micro_batch)]

    def _place(self, micro_batch: int) -> int:
        return (micro_batch - self._replica) // self._replicas
