"""The convnet: shapes, and logits that do not depend on which rows share a batch (so that the ring's gradient is exact)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparkring.models.blocks import WholeModel
from sparkring.models.image import image_blocks
from sparkring.models.losses import cross_entropy_sum


def _network(num_outputs: int = 10) -> WholeModel:
    torch.manual_seed(0)
    return WholeModel(image_blocks(1, num_outputs, widths=(8, 12))).double()


def _images(rows: int) -> torch.Tensor:
    return torch.randn(rows, 1, 14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _gradient(network: nn.Module, parts: list[slice]) -> torch.Tensor:
    """The gradient of the summed loss, with the rows dealt out like this."""
    images, labels = _images(7), torch.arange(7) % 10
    network.zero_grad()
    for part in parts:
        cross_entropy_sum(network(image=images[part]), labels[part]).backward()
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None])


@pytest.mark.parametrize(("num_outputs", "shape"), [(10, (3, 10)), (1, (3,))])
def test_a_row_has_a_logit_a_class_and_one_for_a_yes_or_no(num_outputs: int, shape: tuple[int, ...]) -> None:
    assert _network(num_outputs)(image=_images(3)).shape == shape


def test_the_gradient_does_not_depend_on_how_rows_are_dealt() -> None:
    whole = _gradient(_network(), [slice(0, 7)])
    dealt = _gradient(_network(), [slice(0, 5), slice(5, 6), slice(6, 7)])
    torch.testing.assert_close(dealt, whole, rtol=1e-10, atol=1e-12)


def test_control_with_batch_statistics_it_would() -> None:
    def with_batch_statistics() -> nn.Module:
        network = _network()
        network.norm = nn.BatchNorm2d(12).double()
        return network

    whole = _gradient(with_batch_statistics(), [slice(0, 7)])
    dealt = _gradient(with_batch_statistics(), [slice(0, 5), slice(5, 7)])
    assert not torch.allclose(dealt, whole, rtol=1e-3)


def test_it_learns_to_tell_two_kinds_of_images_apart() -> None:
    network = _network(2).float()
    images = torch.zeros(16, 1, 14, 14)
    images[::2, :, :7] = 1.0  # the upper half is bright in every second image
    labels = torch.tensor([1, 0] * 8)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        (cross_entropy_sum(network(image=images), labels) / 16).backward()
        optimizer.step()
    assert (network(image=images).argmax(dim=1) == labels).all()
