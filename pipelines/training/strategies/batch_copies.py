"""Copies of batches to a GPU, made by a thread beside training (``one_ahead.py``), on a stream of their own.

    thread            pin the batch, begin to copy it, set a mark on the copies' stream
    training thread   have its own stream wait for that mark, which no thread does

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, sections "CUDA streams" and "Use pinned memory buffers".
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.training.strategies.step import Inputs


class BatchCopies:
    """Begins to copy batches to the device of some inputs."""

    def __init__(self, inputs: Inputs) -> None:
        """Open the stream; ``inputs``: which tensors of a batch are wanted, and on which device."""
        self._inputs, self._stream = inputs, torch.cuda.Stream(inputs.device)

    def __call__(self, batch: Batch) -> Callable[[], Batch]:
        """Begin to copy a batch; the training thread calls the result to take it."""
        with torch.cuda.stream(self._stream):
            placed = self._inputs.placed(batch)
            copied = self._stream.record_event()

        def take() -> Batch:
            stream = torch.cuda.current_stream(self._inputs.device)
            stream.wait_event(copied)
            for tensor in placed.tensors.values():
                if tensor.is_cuda:
                    tensor.record_stream(stream)  # its memory belongs to the copies' stream, which must not reuse it too early
            return placed

        return take
