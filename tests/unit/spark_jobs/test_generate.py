"""Texts go on without Spark where the decoder is not cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from sparkring.models.adapting.adapt import adapt
from sparkring.models.blocks import BlockList
from sparkring.models.build import Shapes
from sparkring.spark_jobs.generate import generate
from tests.support import seams
from tests.support.exported import text_workspace


def test_a_decoder_of_another_library_continues_texts_of_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(shapes: Shapes) -> BlockList:
        return adapt(lambda: nn.Sequential(nn.Embedding(shapes.vocabulary, 8), nn.Linear(8, shapes.vocabulary)), shapes)

    monkeypatch.setattr(seams.NETWORK_BUILDS, {"mine": build})
    config = text_workspace(tmp_path, network="mine")
    short, long = generate(config, ["\1", "\1\2\3\4\5\6\7\10"], max_tokens=9)
    assert min(short.tokens, long.tokens) > 0
    assert (short, long) == tuple(generate(config, [prompt], max_tokens=9)[0] for prompt in (short.prompt, long.prompt))
