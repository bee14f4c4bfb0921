"""Tensors of a GPU on their way through the host's memory, for links that carry only that: one copy each way, on a stream of its own.

    send       device --copy--> pinned memory --link-->           ends with the copy, and so with the passes that made the tensors
    receive    --link--> pinned memory --copy--> device           waits for no pass; passes launched afterwards wait for the copy

Tensors that stay on a device between two processes would need CUDA's interprocess handles: see docs/adr/0003.
Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, sections "CUDA streams" and "Use pinned memory buffers".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class HostCopies:
    """Copies between one GPU and the host."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def to_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies in pinned memory; waits for them."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor.detach(), non_blocking=True)
                      for tensor in tensors]
        self._stream.synchronize()
        return copies

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies on the device, for work that is launched from now on; does not wait. Pinned memory is not reused before it was read."""
        stream = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            copies = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
        stream.wait_stream(self._stream)
        for copy in copies:
            copy.record_stream(stream)
        return copies
