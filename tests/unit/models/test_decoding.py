"""Going on with texts: the likeliest token or a drawn one, the end of a document, the end of the room, and no text looks at another."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sparkring.models.adapting.adapt import adapt
from sparkring.models.blocks import WholeModel
from sparkring.models.build import Shapes
from sparkring.models.decoding import Sampling, Texts, TokenIds, decode_locally
from sparkring.models.text import text_blocks

END, PAD, LENGTH, VOCABULARY = 11, 12, 6, 13
IDS = TokenIds(length=LENGTH, end_id=END, pad_id=PAD)


def _counting(window_BT: Tensor) -> Tensor:
    """Is sure that each token is followed by the next one, and next to it that padding comes."""
    logits_BTV = torch.nn.functional.one_hot((window_BT + 1) % VOCABULARY, VOCABULARY).double()
    logits_BTV[..., PAD] = 2.0
    return logits_BTV


def _network() -> WholeModel:
    torch.manual_seed(4)
    network = WholeModel(text_blocks(VOCABULARY, LENGTH, width=16, layers=2, heads=2, tied=True)).double().eval()
    for parameter in network.parameters():
        parameter.data.mul_(3)  # less alike logits than those of initial weights
    return network


def test_texts_end_by_themselves_or_when_there_is_no_more_to_write() -> None:
    texts = Texts([[3], [9], [0, 1, 2, 3, 4, 5, 6, 7]], IDS, Sampling(max_tokens=4))
    assert decode_locally(texts, _counting) == [[4, 5, 6, 7], [10, END], [8, 9, 10, END]]


def test_the_decoder_sees_the_end_of_each_open_text() -> None:
    texts = Texts([[3], list(range(8)), []], IDS, Sampling(max_tokens=2))
    assert texts.window().tolist() == [[3] + [PAD] * 5, [2, 3, 4, 5, 6, 7], [END] + [PAD] * 5]
    texts.add(torch.tensor([4, END, 7]))
    assert texts.open == [0, 2]
    assert texts.window().tolist() == [[3, 4], [END, 7]]


def test_the_likeliest_tokens_are_those_of_a_plain_loop() -> None:
    network, prompts = _network(), [[1, 2], [5], [7, 8, 9, 10, 1, 2, 3, 4]]
    found = decode_locally(Texts(prompts, IDS, Sampling(max_tokens=9)), network)
    for prompt, added in zip(prompts, found, strict=True):
        text = list(prompt)
        for token in added:
            logits = network(torch.tensor([text[-LENGTH:]]))[0, -1].detach()
            logits[PAD] = -torch.inf
            assert int(logits.argmax()) == token
            text.append(token)
    assert len({tuple(added) for added in found}) > 1


class _Causal(nn.Module):
    """A decoder of another library: each position sees the mean of those up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(tokens).cumsum(dim=1))
        return logits


def test_an_adapted_decoder_gets_whole_rows_and_chooses_as_if_it_had_the_text_alone() -> None:
    blocks = adapt(_Causal, Shapes(length=LENGTH, vocabulary=VOCABULARY, pad_id=PAD))
    assert (blocks.whole_rows, bool(blocks.uncut), text_blocks(VOCABULARY, LENGTH, width=8, layers=1, heads=1, tied=True).whole_rows) == (
        True, False, False)
    torch.manual_seed(4)
    adapted, alone = WholeModel(blocks).eval(), _Causal()
    alone.load_state_dict(adapted.state_dict())
    prompts, sampling = [[1, 2], [5], [7, 8, 9, 10, 1, 2, 3, 4]], Sampling(max_tokens=9)
    found = decode_locally(Texts(prompts, replace(IDS, whole_rows=True), sampling), adapted)
    assert found == decode_locally(Texts(prompts, IDS, sampling), alone)
    assert len({tuple(added) for added in found}) > 1


def test_what_is_drawn_depends_on_seed_text_and_place_alone() -> None:
    def drawn(prompts: list[list[int]], seed: int) -> list[list[int]]:
        return decode_locally(Texts(prompts, IDS, Sampling(max_tokens=8, temperature=1.0, seed=seed)), _network())

    one, two = drawn([[1], [1]], 5)
    assert one != two  # the same prompt twice
    assert drawn([[1]], 5) == [one]  # without the other text
    assert drawn([[1], [1]], 6) != [one, two]


def test_draws_have_the_shares_that_the_decoder_predicts() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, *[-torch.inf] * (VOCABULARY - 3)], dtype=torch.float64)
    counts = {}
    for temperature in (1.0, 0.5):
        texts = Texts([[1]] * 4000, IDS, Sampling(max_tokens=1, temperature=temperature))
        added = decode_locally(texts, lambda window: logits.expand(*window.shape, VOCABULARY))
        counts[temperature] = torch.bincount(torch.tensor(added).flatten(), minlength=3)[:3].double() / 4000
        torch.testing.assert_close(counts[temperature], (logits[:3] / temperature).softmax(dim=0), atol=0.03, rtol=0)
    assert not torch.allclose(counts[1.0], counts[0.5], atol=0.05)
