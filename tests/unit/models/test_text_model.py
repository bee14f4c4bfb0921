"""The decoder: causal, and a loss that counts each real token once."""

from __future__ import annotations

import math

import torch

from sparkring.models.blocks import WholeModel
from sparkring.models.losses import next_token_loss_sum, next_token_nats
from sparkring.models.text import text_blocks

PAD = 11


def _network(*, tied: bool = True) -> WholeModel:
    torch.manual_seed(0)
    return WholeModel(text_blocks(12, 8, width=16, layers=2, heads=2, tied=tied)).double()


def test_a_position_sees_no_later_token() -> None:
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5:] = 9
    first, second = (_network()(tokens=row) for row in (tokens, changed))
    assert first.shape == (1, 8, 12)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5], second[:, 5])


def test_a_tied_network_has_no_matrix_of_its_own_for_the_output() -> None:
    counts = [sum(parameter.numel() for parameter in _network(tied=tied).parameters()) for tied in (True, False)]
    assert counts[1] - counts[0] == 12 * 16


def test_an_untrained_network_is_about_as_unsure_as_chance() -> None:
    tokens = torch.arange(8)[None].repeat(4, 1)
    loss = next_token_loss_sum(_network()(tokens=tokens), tokens, pad_id=PAD) / 4
    assert abs(float(loss.detach()) - math.log(12)) < 0.2


def test_the_loss_is_the_mean_over_a_row_s_real_tokens_summed_over_rows() -> None:
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, PAD, PAD], [7, PAD, PAD, PAD]])
    logits = torch.randn(3, 4, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    logs = logits.log_softmax(dim=2)
    first = -(logs[0, 0, 2] + logs[0, 1, 3] + logs[0, 2, 4]) / 3
    second = -logs[1, 0, 6]
    torch.testing.assert_close(next_token_loss_sum(logits, tokens, pad_id=PAD), first + second)  # the third row predicts nothing
    nats, counted = next_token_nats(logits, tokens, pad_id=PAD)
    assert counted.tolist() == [[True, True, True, False], [True, False, False, False], [False] * 4]
    torch.testing.assert_close(nats[1, 0], second)
    assert (nats[~counted] == 0).all()


def test_the_gradient_does_not_depend_on_how_rows_are_dealt() -> None:
    tokens = torch.randint(0, 11, (5, 8), generator=torch.Generator().manual_seed(3))
    gradients = []
    for parts in ([slice(0, 5)], [slice(0, 1), slice(1, 5)]):
        network = _network()
        for part in parts:
            next_token_loss_sum(network(tokens=tokens[part]), tokens[part], pad_id=PAD).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-12)
