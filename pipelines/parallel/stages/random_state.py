"""The random generators that a forward pass may draw from, so that the same pass can run again with the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class RandomState:
    """The generators' state at one moment."""

    def __init__(self, device: torch.device) -> None:
        """Take the state of the CPU's generator and, if the pass runs on a GPU, of that one's. Neither read waits for the device."""
        self._devices = [device] if device.type == "cuda" else []
        self._host = torch.get_rng_state()
        self._device = [torch.cuda.get_rng_state(one) for one in self._devices]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw from this state inside the block; the generators then go on as if there had been no block."""
        with torch.random.fork_rng(devices=self._devices):
            torch.set_rng_state(self._host)
            for device, state in zip(self._devices, self._device, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
