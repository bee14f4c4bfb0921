"""Parquet files with page checksums, as Spark writes them: Arrow 14 can write them, but its Python binding does not offer that.

A file that Arrow wrote is taken apart, each page header gets the CRC-32 of its page, and the footer the new offsets and sizes. Headers and
footer are read and written as plain trees of Thrift's compact protocol, without knowing their schema.

Source: parquet.thrift, https://github.com/apache/parquet-format; Thrift's compact protocol,
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TRUE, FALSE, BYTE, I32, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 5, 7, 8, 9, 10, 12
Struct = dict[int, tuple[int, Any]]
"""Field number -> kind and value; a list's value is the kind of its items and the items."""


def write_parquet(table: pa.Table, path: Path, **options: Any) -> None:
    """As ``pyarrow.parquet.write_table``, with page checksums."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    path.write_bytes(with_checksums(sink.getvalue()))


def with_checksums(data: bytes) -> bytes:
    """The same Parquet file with the CRC-32 of each page in its header."""
    footer_bytes = int.from_bytes(data[-8:-4], "little")
    footer, _ = _read_struct(data, len(data) - 8 - footer_bytes)
    out = bytearray(b"PAR1")
    for _, group in _items(footer[4]):
        grown = sum(_copy_chunk(chunk[3][1], data, out) for _, chunk in _items(group[1]))
        for total in (2, 6):
            _add(group, total, grown)
        if 5 in group:
            group[5] = (group[5][0], min(_first_offset(chunk[3][1]) for _, chunk in _items(group[1])))
    encoded = _write_struct(footer)
    return bytes(out + encoded + len(encoded).to_bytes(4, "little") + b"PAR1")


def pages(data: bytes) -> list[tuple[Struct, int, int]]:
    """(header, first byte of the body, one past its last byte) of each page of a file."""
    footer, _ = _read_struct(data, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    found = []
    for _, group in _items(footer[4]):
        for _, chunk in _items(group[1]):
            at = _first_offset(chunk[3][1])
            end = at + chunk[3][1][7][1]
            while at < end:
                header, body = _read_struct(data, at)
                at = body + header[3][1]
                found.append((header, body, at))
    return found


def _items(field: tuple[int, Any]) -> list[tuple[int, Any]]:
    kind, items = field[1]
    return [(kind, item) for item in items]


def _first_offset(column: Struct) -> int:
    return int(column.get(11, column[9])[1])  # the dictionary lies first; a chunk without rows may have no other page


def _copy_chunk(column: Struct, data: bytes, out: bytearray) -> int:
    """Copy the pages of a column chunk, with checksums; returns by how many bytes it grew."""
    at, end, moved = _first_offset(column), _first_offset(column) + column[7][1], {}
    begin = len(out)
    while at < end:
        header, body = _read_struct(data, at)
        moved[at] = len(out)
        at = body + header[3][1]
        crc = zlib.crc32(data[body:at])
        header[4] = (I32, crc - (1 << 32) if crc >> 31 else crc)
        out += _write_struct(header) + data[body:at]
    grown = len(out) - begin - column[7][1]
    for offset in (9, 11):
        if offset in column and column[offset][1] in moved:
            column[offset] = (column[offset][0], moved[column[offset][1]])
    for total in (6, 7):
        _add(column, total, grown)
    return grown


def _add(struct: Struct, field: int, amount: int) -> None:
    if field in struct:
        struct[field] = (struct[field][0], struct[field][1] + amount)


def _read_struct(data: bytes, at: int) -> tuple[Struct, int]:
    fields: Struct = {}
    number = 0
    while head := data[at]:
        at, kind = at + 1, head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_integer(data, at)
        value, at = (kind == TRUE, at) if kind in (TRUE, FALSE) else _read_value(data, at, kind)
        fields[number] = (kind, value)
    return fields, at + 1


def _read_value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE, BYTE):  # a boolean in a list is a byte
        return data[at], at + 1
    if kind == DOUBLE:
        return data[at:at + 8], at + 8
    if kind == BINARY:
        size, at = _read_varint(data, at)
        return data[at:at + size], at + size
    if kind in (LIST, SET):
        head, at = data[at], at + 1
        count, at = (head >> 4, at) if head >> 4 < 15 else _read_varint(data, at)
        items = []
        for _ in range(count):
            item, at = _read_value(data, at, head & 15)
            items.append(item)
        return (head & 15, items), at
    return _read_struct(data, at) if kind == STRUCT else _read_integer(data, at)


def _read_integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def _write_struct(struct: Struct) -> bytes:
    out, before = bytearray(), 0
    for number, (kind, value) in sorted(struct.items()):
        delta = number - before
        out += bytes([delta << 4 | kind]) if delta < 16 else bytes([kind]) + _write_integer(number)
        if kind not in (TRUE, FALSE):
            out += _write_value(kind, value)
        before = number
    return bytes(out) + b"\0"


def _write_value(kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE, BYTE):
        return bytes([value])
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _write_varint(len(value)) + value
    if kind in (LIST, SET):
        of, items = value
        head = bytes([len(items) << 4 | of]) if len(items) < 15 else bytes([0xF0 | of]) + _write_varint(len(items))
        return head + b"".join(_write_value(of, item) for item in items)
    return _write_struct(value) if kind == STRUCT else _write_integer(value)


def _write_integer(value: int) -> bytes:
    return _write_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
