"""Dropout belongs to rows: what is dropped of a row does not depend on who computes it, with which others, or how often."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkring.conf.schema import TextModelConfig
from sparkring.models.blocks import BlockList, WholeModel
from sparkring.models.build import Shapes, build_model, without_dropout
from sparkring.models.dropout import RowDropout, random_words
from sparkring.models.image import image_blocks
from sparkring.models.inputs import ROW_SEEDS
from sparkring.models.tabular import tabular_blocks
from sparkring.models.text import text_blocks
from sparkring.pipelines.data.order.rowhash import mix, row_bits

ROWS = 6
BLOCKS: dict[str, tuple[Callable[[float], BlockList], dict[str, Tensor]]] = {
    "text": (lambda dropout: text_blocks(11, 5, width=8, layers=2, heads=2, tied=True, dropout=dropout),
             {"tokens": torch.arange(ROWS * 5).view(ROWS, 5) % 11}),
    "tabular": (lambda dropout: tabular_blocks(3, (4,), hidden=(16, 8), max_embedding=4, dropout=dropout),
                {"numeric": torch.randn(ROWS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
                 "categorical": torch.arange(ROWS)[:, None] % 4}),
    "image": (lambda dropout: image_blocks(1, 3, widths=(4, 6), dropout=dropout),
              {"image": torch.randn(ROWS, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))}),
}


def _seeds(count: int, *, epoch: int = 0) -> Tensor:
    return torch.from_numpy(row_bits(np.arange(count), seed=3, epoch=epoch).view(np.int64))


def test_the_streams_are_splitmix64() -> None:
    keys = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    counts = np.arange(5, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = mix((keys[:, None] + counts).ravel()).reshape(4, 5)
    assert (random_words(torch.from_numpy(keys.view(np.int64)), 5).numpy().view(np.uint64) == expected).all()
    assert int(expected[0, 0]) == 0xE220A8397B1DCDAF  # the first number of SplitMix64 from 0, as published with it


@pytest.mark.parametrize("p", [0.1, 0.5, 1 / 65536])
def test_the_share_that_is_dropped_is_p_and_the_rest_is_scaled_up(p: float) -> None:
    dropout, ones = RowDropout(p, place="here"), torch.ones(500, 2003)  # not a multiple of the elements of a word
    dropped = dropout(ones, _seeds(500))
    share = float((dropped == 0).double().mean())
    assert share == pytest.approx(p, abs=5 * (p / ones.numel()) ** 0.5)
    assert dropped[dropped != 0].unique().tolist() == [pytest.approx(1 / (1 - p), rel=2e-5)]  # p is a multiple of 2**-16
    by_place, by_row = (dropped == 0).double().mean(dim=0), (dropped == 0).double().mean(dim=1)
    assert float(by_place.max()) < p + 8 * (p / 500) ** 0.5 + 0.01  # no element and no row that is dropped more often
    assert float(by_row.max()) < p + 8 * (p / 2003) ** 0.5 + 0.01


def test_places_rows_and_epochs_drop_independently() -> None:
    ones = torch.ones(1, 40_000)

    def kept(place: str, row: int, epoch: int) -> Tensor:
        return (RowDropout(0.5, place=place)(ones, _seeds(row + 1, epoch=epoch)[row:]) != 0).double()

    masks = [kept("blocks.0.attention", 0, 0), kept("blocks.0.perceptron", 0, 0), kept("blocks.0.attention", 1, 0),
             kept("blocks.0.attention", 0, 1)]
    assert torch.equal(masks[0], kept("blocks.0.attention", 0, 0))
    for number, one in enumerate(masks):
        for other in masks[:number]:
            assert abs(float((one * other).mean()) - 0.25) < 0.02


def test_evaluation_and_p_of_zero_change_nothing_and_need_no_seeds() -> None:
    x = torch.randn(3, 4)
    assert RowDropout(0.5, place="here").eval()(x) is x
    assert RowDropout(0.0, place="here")(x) is x
    with pytest.raises(AssertionError, match="here drops by row"):
        RowDropout(0.5, place="here")(x)


def test_the_gradient_passes_where_the_value_did() -> None:
    x = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    RowDropout(0.3, place="here")(x, _seeds(4)).sum().backward()
    again = RowDropout(0.3, place="here")(torch.ones(4, 9, dtype=torch.float64), _seeds(4))
    assert x.grad is not None
    assert torch.equal(x.grad, again)


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_row_s_outputs_are_the_same_in_any_company(kind: str) -> None:
    blocks, inputs = BLOCKS[kind]
    model = WholeModel(blocks(0.4), seed=1).double()
    inputs = {**inputs, ROW_SEEDS: _seeds(ROWS)}
    whole = model(**inputs)
    alone = torch.cat([model(**{name: tensor[row:row + 1] for name, tensor in inputs.items()}) for row in range(ROWS)])
    torch.testing.assert_close(alone, whole, rtol=1e-12, atol=1e-12)
    plain = WholeModel(blocks(0.0), seed=1).double()
    assert list(plain.state_dict()) == list(model.state_dict())
    bare = {name: tensor for name, tensor in inputs.items() if name != ROW_SEEDS}
    assert not torch.allclose(whole, plain(**bare), rtol=1e-3)  # something was dropped
    assert torch.equal(model.eval()(**inputs), plain.eval()(**bare))


def test_control_torch_s_own_dropout_depends_on_the_company() -> None:
    def mask(rows: int) -> Tensor:
        torch.manual_seed(0)
        return nn.functional.dropout(torch.ones(rows, 50))

    assert not torch.equal(mask(6)[4:], mask(2))  # the last two rows with others before them, and alone


def test_a_trained_network_predicts_without_seeds() -> None:
    config = TextModelConfig(kind="text", width=8, layers=1, heads=2, dropout=0.5)
    model = build_model(without_dropout(config), Shapes(length=5, vocabulary=11))
    assert model.block_list.inputs == ("tokens",)
    assert build_model(config, Shapes(length=5, vocabulary=11)).block_list.inputs == ("tokens", ROW_SEEDS)
