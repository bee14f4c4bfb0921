"""A checkpoint takes from a rank's device what that rank saves, and nothing else. The device is ``meta``, as in test_step_devices.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from sparkring.pipelines.training.checkpoints.writer import _copied
from sparkring.pipelines.training.strategies.state import dealt, named_tensors

DEVICE = torch.device("meta")
PLACES = 3

State = dict[str, Tensor]


class Taken(TorchDispatchMode):
    """Counts the bytes that are copied from the device to the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sources = [arg for arg in args if isinstance(arg, Tensor) and arg.device == DEVICE]
        if isinstance(result, Tensor) and result.device.type == "cpu" and sources:
            self.bytes += result.nbytes
        return result


def bytes_taken(take: Callable[[State], object]) -> int:
    """The bytes that ``take`` brings to the host of the state of a model on the device."""
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(12)))
    with FakeTensorMode(allow_non_fake_inputs=True), Taken() as taken:
        model.to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        model(torch.ones(2, 32, device=DEVICE)).sum().backward()
        optimizer.step()
        state = dict(named_tensors([model], optimizer))
        assert len(state) == 48
        assert {tensor.device for tensor in state.values()} == {DEVICE}
        assert taken.bytes == 0
        take(state)
    return taken.bytes


def save_own_part(state: State, place: int) -> None:
    """As a strategy chooses and a writer copies."""
    names = dealt({name: tensor.numel() for name, tensor in state.items()}, place, PLACES)
    copies = {name: _copied(state[name], None) for name in names}
    assert {copy.device.type for copy in copies.values()} == {"cpu"}


def test_a_rank_takes_its_own_part_from_its_device_and_all_ranks_together_the_whole_state() -> None:
    whole = 2 * 12 * (32 * 32 + 32) * 4
    parts = [bytes_taken(lambda state, place=place: save_own_part(state, place)) for place in range(PLACES)]  # type: ignore[misc]
    assert sum(parts) == whole
    assert max(parts) == pytest.approx(whole / PLACES, rel=0.1)


def test_control_a_rank_that_brings_all_of_it_to_the_host_first_takes_the_whole_state() -> None:
    assert bytes_taken(lambda state: {name: tensor.cpu() for name, tensor in state.items()}) == 2 * 12 * (32 * 32 + 32) * 4


def test_the_memory_of_the_copy_before_is_used_again_where_it_fits() -> None:
    first = _copied(torch.ones(3, 2).T, None)
    again = _copied(torch.zeros(2, 3), first)
    assert again is first
    assert again.tolist() == [[0.0] * 3] * 2
    assert first.is_contiguous()
    assert _copied(torch.zeros(2, 3, dtype=torch.float64), first) is not first
