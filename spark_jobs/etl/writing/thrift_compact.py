"""Thrift's compact protocol as plain trees: what is read can be changed and written again, without knowing its schema.

Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md. Maps are left out: Parquet has none.
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, BYTE, I32, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 5, 7, 8, 9, 10, 12
Struct = dict[int, tuple[int, Any]]
"""Field number -> kind and value; a list's value is the kind of its items and the items."""


def read_struct(data: memoryview, at: int = 0) -> tuple[Struct, int]:
    """The struct that begins at ``at``, and the position after it."""
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


def write_struct(struct: Struct) -> bytes:
    """The bytes of a struct."""
    out, before = bytearray(), 0
    for number, (kind, value) in sorted(struct.items()):
        delta = number - before
        out += bytes([delta << 4 | kind]) if delta < 16 else bytes([kind]) + _write_integer(number)
        if kind not in (TRUE, FALSE):
            out += _write_value(kind, value)
        before = number
    return bytes(out) + b"\0"


def structs(field: tuple[int, Any]) -> list[Struct]:
    """The items of a list of structs."""
    items: list[Struct] = field[1][1]
    return items


def _read_value(data: memoryview, at: int, kind: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE, BYTE):  # a boolean in a list is a byte
        return data[at], at + 1
    if kind == DOUBLE:
        return bytes(data[at:at + 8]), at + 8
    if kind == BINARY:
        size, at = _read_varint(data, at)
        return bytes(data[at:at + size]), at + size
    if kind in (LIST, SET):
        head, at = data[at], at + 1
        count, at = (head >> 4, at) if head >> 4 < 15 else _read_varint(data, at)
        items = []
        for _ in range(count):
            item, at = _read_value(data, at, head & 15)
            items.append(item)
        return (head & 15, items), at
    return read_struct(data, at) if kind == STRUCT else _read_integer(data, at)


def _read_integer(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def _write_value(kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE, BYTE):
        return bytes([value])
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _write_varint(len(value)) + bytes(value)
    if kind in (LIST, SET):
        of, items = value
        head = bytes([len(items) << 4 | of]) if len(items) < 15 else bytes([0xF0 | of]) + _write_varint(len(items))
        return head + b"".join(_write_value(of, item) for item in items)
    return write_struct(value) if kind == STRUCT else _write_integer(value)


def _write_integer(value: int) -> bytes:
    return _write_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
