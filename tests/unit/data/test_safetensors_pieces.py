"""Tensors in pieces are the file that the safetensors package writes and reads."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save

from sparkring.pipelines.data.stores.pieces import Pieces, PiecesFile
from sparkring.pipelines.training.checkpoints.safetensors_pieces import safetensors_pieces

TENSORS = {
    "weight": torch.arange(12, dtype=torch.float32).reshape(3, 4), "step": torch.tensor(7.0), "none": torch.empty(0, 5),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "flags": torch.tensor([True, False, True]),
    "odd": torch.ones(3, dtype=torch.int8),
    "ids": torch.tensor([2**40, -1]), "precise": torch.tensor([0.1], dtype=torch.float64), "name with \"quotes\"": torch.ones(2)}


@pytest.mark.parametrize("tensors", [pytest.param(TENSORS, id="of all kinds"), pytest.param({}, id="none")])
def test_the_pieces_are_what_safetensors_reads(tensors: dict[str, torch.Tensor]) -> None:
    data = b"".join(safetensors_pieces(tensors))
    found = load(data)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)
    assert len(data) == len(save(tensors))  # nothing more than the package itself writes


def test_a_tensor_is_not_copied() -> None:
    tensor = torch.zeros(4)
    pieces = safetensors_pieces({"x": tensor})
    tensor[2] = 1.0
    assert load(b"".join(pieces))["x"].tolist() == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_pieces_are_read_as_one_file_in_bites_of_any_size(size: int) -> None:
    pieces: Pieces = [b"", b"0123", memoryview(b"456789"), b"", b"ab"]
    file, bites = PiecesFile(pieces), []
    assert len(file) == 12
    while bite := file.read(size):
        bites.append(bite)
    assert b"".join(bites) == b"0123456789ab"
    assert {len(bite) for bite in bites[:-1]} <= {size}
    assert PiecesFile(pieces).read() == b"0123456789ab"
