"""Headers of Parquet pages, read from the bytes of a column chunk. Nothing in them is trusted.

    column chunk    page page ...
    page            header: kind, sizes, CRC-32, number of values    (Thrift's compact protocol)
                    body:   [levels] values

Source: PageHeader in parquet.thrift, https://github.com/apache/parquet-format; Thrift's compact protocol,
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isal import isal_zlib

HEADER_BYTES = 16 << 10
"""Longest header, statistics included."""
DATA_PAGE, DATA_PAGE_V2 = 0, 3
NONSENSE = (LookupError, TypeError, ValueError)
"""Raised by a header that makes no sense; TypeError by a field of another kind."""


@dataclass(frozen=True)
class PageHeader:
    """A page's position in its column chunk, and its header's content."""

    kind: int
    begin: int
    """First byte of the body."""
    end: int
    """One past the last byte of the body."""
    size: int
    """Bytes of the body once it is decompressed."""
    crc: int | None
    """CRC-32 of the body as it is stored; None if the writer left it out."""
    fields: dict[int, Any]
    """All fields of the header by their Thrift numbers."""

    @classmethod
    def read(cls, chunk: memoryview, at: int) -> PageHeader:
        """Read the header at ``at``; one of ``NONSENSE`` if it makes no sense."""
        fields, length = read_struct(chunk[at:at + HEADER_BYTES])
        begin, end = at + length, at + length + fields[3]
        if not begin <= end <= len(chunk):
            raise ValueError(f"a page of {fields[3]} bytes")
        crc = fields.get(4)
        return cls(kind=fields[1], begin=begin, end=end, size=fields[2], crc=None if crc is None else crc & 0xFFFFFFFF, fields=fields)

    @property
    def num_values(self) -> int:
        """Values of a data page, nulls included; 0 of any other page. One of ``NONSENSE`` if the header does not
        say.
        """
        details = {DATA_PAGE: 5, DATA_PAGE_V2: 8}.get(self.kind)
        return 0 if details is None else int(self.fields[details][1])

    def found_crc(self, chunk: memoryview) -> int | None:
        """CRC-32 of the body as it is in ``chunk``; None if the header has none to compare it with."""
        return None if self.crc is None else isal_zlib.crc32(chunk[self.begin:self.end])


def read_struct(view: memoryview, at: int = 0, depth: int = 0) -> tuple[dict[int, Any], int]:
    """A Thrift struct as field number -> value, and the position after it; ValueError if it is none of a page header."""
    if depth > 3:
        raise ValueError("structs within structs")
    fields: dict[int, Any] = {}
    number = 0
    while head := view[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(view, at)
        if 1 <= kind <= 2:
            fields[number] = kind == 1
        elif kind == 12:
            fields[number], at = read_struct(view, at, depth + 1)
        elif kind == 8:  # the smallest and the largest value, in the statistics
            size, at = read_varint(view, at)
            at += size
        elif 4 <= kind <= 6:
            fields[number], at = _integer(view, at)
        else:
            raise ValueError(f"a field of kind {kind}")
    return fields, at + 1


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """An unsigned integer of up to 64 bits, and the position after it."""
    value = shift = 0
    while shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("an integer of more than 64 bits")


def _integer(view: memoryview, at: int) -> tuple[int, int]:
    """A signed integer, and the position after it."""
    value = view[at]
    if value < 128:
        at += 1
    else:
        value, at = read_varint(view, at)
    return (value >> 1) ^ -(value & 1), at
