"""Messages over the pipes between a Spark task and its rank process: eight bytes of length, then the bytes.

It does not interpret the bytes. It imports the standard library only, since a rank imports it before anything else.
"""

from __future__ import annotations

import struct
from typing import IO

_LENGTH = struct.Struct(">Q")


def write_message(stream: IO[bytes], data: bytes) -> None:
    """Write one message and flush it."""
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes | None:
    """Read one message.

    Args:
        stream: A buffered binary stream, so that a short read means the end.
    Returns:
        Its bytes, or None if the other end closed the stream before the message was complete.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None
