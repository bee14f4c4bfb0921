"""Row counts of a million row groups in little room."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from sparkring.pipelines.data.dataset.sizes import Sizes, SizesField


class _Document(BaseModel):
    sizes: SizesField


@given(st.lists(st.one_of(st.just(7), st.integers(0, 2**63 - 1))))
def test_what_is_written_is_read(values: list[int]) -> None:
    document = _Document(sizes=values)
    assert _Document.model_validate_json(document.model_dump_json()) == document
    assert (list(document.sizes), len(document.sizes)) == (values, len(values))
    assert document.sizes == tuple(values)
    assert tuple(values) == document.sizes
    assert hash(document.sizes) == hash(tuple(values))


def test_runs_are_written_once() -> None:
    sizes = Sizes((5, 5, 5, 0, 2))
    assert str(sizes) == "3*5 0 2"
    assert json.loads(_Document(sizes=sizes).model_dump_json()) == {"sizes": "3*5 0 2"}
    assert (sizes[0], sizes[-1], list(sizes[3:])) == (5, 2, [0, 2])
    assert Sizes((1,)) != Sizes((2,))


@pytest.mark.parametrize("damaged", [
    '"3*"', '"-1"', '"1,2"', '"*3"', '"0*3"', "[1.5]", "[-1]", "3", '"999999999999*3"', '"1 "', '"9999999999999999999999"'])
def test_anything_else_is_refused(damaged: str) -> None:
    with pytest.raises(ValidationError):
        _Document.model_validate_json('{"sizes": ' + damaged + "}")
