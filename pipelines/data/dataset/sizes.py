"""A compact sequence of sizes: 8 bytes each in memory, and runs of equal sizes written once in JSON.

A manifest of a million row groups has two million sizes; as Python integers they would take ten times the memory.

    (52084, 52084, 52084, 51007)   <->   "3*52084 51007"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

_TEXT = re.compile(r"(?:(?:[1-9]\d*\*)?\d+(?: (?:[1-9]\d*\*)?\d+)*)?")
MOST = 100_000_000
"""Largest number of sizes in a sequence: a damaged count must not fill the memory."""


class Sizes(Sequence[int]):
    """An immutable sequence of integers below 2**63; equal to any sequence of the same integers."""

    __slots__ = ("_packed",)

    def __init__(self, values: Sequence[int] | NDArray[np.int64]) -> None:
        self._packed = np.asarray(values, dtype=np.int64).tobytes()

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """Read the text that ``str`` returns; ValueError if it is another text."""
        if not _TEXT.fullmatch(text):
            raise ValueError(f"{text[:40]!r} is not a list of sizes such as '3*52084 51007'")
        runs = [(int(times or 1), int(size)) for times, _, size in (run.rpartition("*") for run in text.split())]
        if sum(times for times, _ in runs) > MOST:
            raise ValueError(f"{text[:40]!r} stands for more than {MOST} sizes")
        if any(size >= 1 << 63 for _, size in runs):
            raise ValueError(f"{text[:40]!r} holds a size beyond 2**63")
        return cls(np.repeat(np.array([size for _, size in runs], dtype=np.int64), [times for times, _ in runs]))

    @property
    def array(self) -> NDArray[np.int64]:
        """(sizes,) the integers, read-only."""
        return np.frombuffer(self._packed, dtype=np.int64)

    def __str__(self) -> str:
        """The integers; each run of equal ones is written once."""
        runs = ((size, sum(1 for _ in run)) for size, run in groupby(self.array.tolist()))
        return " ".join(f"{times}*{size}" if times > 1 else str(size) for size, times in runs)

    def __repr__(self) -> str:
        """The integers under the class's name."""
        return f"Sizes({self})"

    def __len__(self) -> int:
        """Number of sizes."""
        return len(self._packed) // 8

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sizes: ...
    def __getitem__(self, place: int | slice) -> int | Sizes:
        """One size, or the sizes of a slice."""
        return Sizes(self.array[place]) if isinstance(place, slice) else int(self.array[place])

    def __iter__(self) -> Iterator[int]:
        """The sizes in order."""
        return iter(self.array.tolist())

    def __eq__(self, other: object) -> bool:
        """Whether ``other`` is a sequence of the same integers."""
        if isinstance(other, Sizes):
            return self._packed == other._packed
        return isinstance(other, Sequence) and not isinstance(other, str) and self.array.tolist() == list(other)

    def __hash__(self) -> int:
        """The hash of an equal tuple."""
        return hash(tuple(self))


def _validated(value: object) -> Sizes:
    if isinstance(value, Sizes):
        return value
    if isinstance(value, str):
        return Sizes.parse(value)
    if isinstance(value, Sequence) and all(isinstance(one, int) and 0 <= one < 1 << 63 for one in value):
        return Sizes(value)
    raise ValueError("expected sizes: a text such as '3*52084 51007', or integers from 0 up")


SizesField = Annotated[
    Sequence[int], PlainValidator(_validated), PlainSerializer(str, when_used="json"), WithJsonSchema({"type": "string"})]
"""A field of a document that holds ``Sizes``; takes any sequence of integers too."""
