"""What ``sparkring score --input`` takes: a path, or several by the names of the sources that they replace."""

from __future__ import annotations

import pytest

from sparkring.cli.jobs import _given
from sparkring.errors import ConfigError


@pytest.mark.parametrize(("inputs", "given"), [
    (None, None), (["new.csv"], "new.csv"), (["orders"], "orders"), (["dates/day=3"], "dates/day=3"),
    (["orders=new.csv"], {"orders": "new.csv"}), (["orders=day=3", "items=i.csv"], {"orders": "day=3", "items": "i.csv"})])
def test_an_input_is_a_path_unless_it_names_a_source(inputs: list[str] | None, given: object) -> None:
    assert _given(inputs, sources=["orders", "items"]) == given


@pytest.mark.parametrize("inputs", [["orders=a.csv", "b.csv"], ["orders=a.csv", "items="], ["orders=a.csv", "orders=b.csv"]])
def test_of_several_inputs_each_names_a_source_once(inputs: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"--input is given 2 times \(.*\); give each as SOURCE=PATH, each source once"):
        _given(inputs, sources=["orders", "items"])
