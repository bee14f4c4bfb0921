"""Names of a run's checkpoint files; each name describes its file, which need not be read. Pure.

    <run>/checkpoints/data/<steps>-<rank>-<generation>-<mark>.safetensors   one rank's part of a state, written first
    <run>/checkpoints/<steps>-<generation>.json                             the document that names all parts by hash: the commit
    <run>/checkpoints/fences/<generation>-<steps>.json                      the start of each generation (fence.py)

``<steps>`` counts optimizer steps since the run began. ``<generation>`` is the life of the ring that wrote the file, so no generation
overwrites the files of another. ``<mark>`` is random: a part that is written twice gets two names.
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

FOLDER = "checkpoints"
DATA, FENCES = f"{FOLDER}/data", f"{FOLDER}/fences"
PART_NAME = r"[0-9]{1,18}-[0-9]{1,9}-[0-9]{1,18}-[0-9a-f]{8}\.safetensors"
_DOCUMENT_NAME = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})\.json")


class Commit(NamedTuple):
    """A document, as its name describes it."""

    steps: int
    generation: int

    @property
    def name(self) -> str:
        """The document's name, relative to the run's folder."""
        return f"{FOLDER}/{self.steps}-{self.generation}.json"


def commit_of(name: str) -> Commit | None:
    """The commit that a file name in ``FOLDER`` stands for; None if it is no document's name."""
    match = _DOCUMENT_NAME.fullmatch(name)
    return Commit(int(match[1]), int(match[2])) if match else None


def part_name(*, steps: int, rank: int, generation: int) -> str:
    """A new name for one rank's part, in ``DATA``."""
    return f"{steps}-{rank}-{generation}-{uuid.uuid4().hex[:8]}.safetensors"


def origin_of_part(name: str) -> Commit:
    """Steps and generation of a part whose name matches ``PART_NAME``."""
    steps, _, generation, _ = name.split("-")
    return Commit(int(steps), int(generation))
