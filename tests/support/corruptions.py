"""Seeded damage to the Parquet files of a folder: what storage, people and bugs do to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

Damage = Callable[[Sequence[Path], random.Random], list[Path]]
"""(files, chance) -> the files that are now other than before."""


def truncate(files: Sequence[Path], chance: random.Random) -> list[Path]:
    """Cut a file off at any byte."""
    file = chance.choice(files)
    with file.open("r+b") as opened:
        opened.truncate(chance.randrange(file.stat().st_size))
    return [file]


def swap(files: Sequence[Path], chance: random.Random) -> list[Path]:
    """Exchange two files."""
    one, other = chance.sample(files, 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return [one, other]


def delete(files: Sequence[Path], chance: random.Random) -> list[Path]:
    """Remove a file."""
    file = chance.choice(files)
    file.unlink()
    return [file]


def add(files: Sequence[Path], chance: random.Random) -> list[Path]:
    """Put a copy of a file beside it."""
    file = chance.choice(files)
    extra = file.with_name(f"part-{chance.randrange(10**6)}-copy.parquet")
    extra.write_bytes(file.read_bytes())
    return [extra]


def flip_bit(files: Sequence[Path], chance: random.Random) -> list[Path]:
    """Turn one bit of a file, anywhere."""
    file = chance.choice(files)
    data = bytearray(file.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(bytes(data))
    return [file]


def append(files: Sequence[Path], chance: random.Random) -> list[Path]:
    """Add bytes at a file's end."""
    file = chance.choice(files)
    with file.open("ab") as opened:
        opened.write(chance.randbytes(chance.randrange(1, 64)))
    return [file]


DAMAGES: tuple[Damage, ...] = (truncate, swap, delete, add, flip_bit, append)
