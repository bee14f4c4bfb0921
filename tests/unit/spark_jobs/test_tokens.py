"""Documents to rows of tokens: nothing is lost, nothing invented, and the document is found again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkring.conf.schema import TokensConfig
from sparkring.errors import ConfigError
from sparkring.spark_jobs.etl.encoding.tokens import TokenEncoding, cut_rows

BYTES = TokenEncoding()


def test_documents_are_joined_and_cut_as_drawn() -> None:
    # [a b c E][d E P P]
    tokens, counts = cut_rows([b"abc", b"d"], BYTES, length=4)
    assert tokens.tolist() == [[97, 98, 99, 256], [100, 256, 257, 257]]
    assert counts.tolist() == [4, 2]
    assert tokens.dtype == np.uint16


@given(texts=st.lists(st.binary(max_size=30), min_size=1, max_size=8), length=st.integers(2, 9))
def test_the_documents_can_be_read_back_from_the_rows(texts: list[bytes], length: int) -> None:
    tokens, counts = cut_rows(texts, BYTES, length=length)
    stream = np.concatenate([row[:count] for row, count in zip(tokens, counts, strict=True)])
    ends = np.flatnonzero(stream == BYTES.end_id)
    found = [bytes(part[part < 256].astype(np.uint8)) for part in np.split(stream, ends)]
    assert found == [*texts, b""]
    assert counts.sum() == sum(map(len, texts)) + len(texts)
    assert (counts[:-1] == length).all()
    assert (tokens[-1, counts[-1]:] == BYTES.pad_id).all()


def test_a_tokenizer_given_by_file_makes_the_ids_and_the_two_specials_follow_them(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(["def add(self, other): return self + other"] * 3,
                                  BpeTrainer(vocab_size=270, initial_alphabet=ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoding = TokenEncoding.load(TokensConfig(column="text", document="path", tokenizer=str(tmp_path / "tokenizer.json")))
    assert (encoding.size, encoding.end_id, encoding.pad_id) == (270, 270, 271)
    tokens, counts = cut_rows([b"def add", b"self"], encoding, length=4)
    stream = np.concatenate([row[:count] for row, count in zip(tokens, counts, strict=True)]).tolist()
    assert stream == [*tokenizer.encode("def add").ids, 270, *tokenizer.encode("self").ids, 270]
    assert len(stream) < len("def add") + len("self")  # merges were used


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"prepare.features.tokens.tokenizer: .*tokenizer.json is not a readable tokenizer"):
        TokenEncoding.load(TokensConfig(column="text", document="path", tokenizer=str(path)))
