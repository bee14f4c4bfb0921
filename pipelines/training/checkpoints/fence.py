"""The rule for checkpoints that count, if a generation that is over still commits one, e.g. after a rank hung in an upload.

    <run>/checkpoints/fences/<generation>-<steps>.json     a generation has begun after so many steps

    generation 3    ... 100 committed .... 150 hangs in an upload ........................ tries to commit 150
    generation 4              resumes from 100, as its fence says .... 130 committed

Before it commits, rank 0 looks for the fence of a later generation and gives up if there is one. It may hang between the look and
the commit, so readers look too: commits of generation 3 beyond 100 steps do not count, whenever they came. File names carry the
generation, so none overwrites or deletes the files of a later one.

The names hold everything, so one listing is enough. Pure: names in, decisions out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from sparkring.pipelines.training.checkpoints.names import Commit

Fences: TypeAlias = frozenset[tuple[int, int]]
"""(generation, steps after which it began)."""


def fence_name(generation: int, steps: int) -> str:
    """Name of the document which records that a generation began after so many steps."""
    return f"{generation}-{steps}.json"


def fences_of(names: Iterable[str]) -> Fences:
    """The fences that the file names of a folder stand for."""
    matches = (re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})\.json", name) for name in names)
    return frozenset((int(match[1]), int(match[2])) for match in matches if match)


def later(fences: Fences, generation: int) -> int | None:
    """The latest generation after this one, or None."""
    return max((found for found, _ in fences if found > generation), default=None)


def void_by(fences: Fences, *, generation: int, steps: int) -> tuple[int, int] | None:
    """The fence that voids a generation's checkpoint after so many steps; None if the checkpoint counts."""
    return min(((found, began) for found, began in fences if found > generation and began < steps), default=None)


def counting(commits: Iterable[Commit], fences: Fences) -> dict[int, Commit]:
    """For each number of steps the commit that counts, of the latest generation; if none counts, the latest commit."""
    def worth(commit: Commit) -> tuple[bool, int]:
        return void_by(fences, generation=commit.generation, steps=commit.steps) is None, commit.generation

    return {commit.steps: commit for commit in sorted(commits, key=worth)}
