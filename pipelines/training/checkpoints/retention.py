"""Delete checkpoints: all but the latest few and the best, and those that earlier generations left beyond the newest one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress

from sparkring.errors import CheckpointDamaged
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument
from sparkring.pipelines.training.checkpoints.fence import counting, later, void_by
from sparkring.pipelines.training.checkpoints.files import CheckpointFiles
from sparkring.pipelines.training.checkpoints.names import Commit, origin_of_part


def readable(files: CheckpointFiles) -> dict[Commit, CheckpointDocument]:
    """The documents that count and can be read."""
    documents, fences = {}, files.fences()
    for commit in counting(files.commits(), fences).values():
        if void_by(fences, generation=commit.generation, steps=commit.steps) is None:
            with suppress(CheckpointDamaged):  # `latest` names it
                documents[commit] = files.document(commit)
    return documents


def best_first(documents: Mapping[Commit, CheckpointDocument]) -> list[Commit]:
    """The commits whose held-out score is a number, the lowest first."""
    scores = ((document.best_by, commit) for commit, document in documents.items())
    return [commit for _, commit in sorted((score, commit) for score, commit in scores if not math.isnan(score))]


def retain(files: CheckpointFiles, keep: int, *, generation: int | None) -> None:
    """Delete all but the latest ``keep`` and the best of those that count: documents first, then parts that no document names.

    Parts beyond the latest checkpoint stay: a rank may just be writing them.

    Args:
        files: The run's files.
        keep: Number of latest checkpoints to keep, at least 1.
        generation: The caller's generation. Files of later generations stay, and nothing is deleted once a later one has begun. None:
            the caller is no rank, and no ring runs.
    """
    if _is_over(files, generation):
        return
    parts = files.part_names()  # before the documents that name them
    documents, fences = readable(files), files.fences()
    void = {commit for commit in files.commits() if void_by(fences, generation=commit.generation, steps=commit.steps) is not None}
    stay = {*sorted(documents)[-keep:], *best_first(documents)[:1]}
    if _is_over(files, generation):  # this process may have hung meanwhile
        return
    for commit in sorted((documents.keys() | void) - stay):
        if not _is_later(commit, generation):
            files.delete_document(commit)
    if _is_over(files, generation):
        return
    needed = {part.name for commit in stay for part in documents[commit].parts}
    _delete_parts((name for name in parts if name not in needed), files, generation,
                  up_to=max((commit.steps for commit in stay), default=-1))


def forget_overtaken(files: CheckpointFiles, newest: Commit) -> None:
    """Delete the checkpoints of this and earlier generations beyond ``newest``, which now counts. If storage is away, they stay for now."""
    with suppress(OSError):
        for commit in files.commits():
            beyond = commit.steps > newest.steps or (commit.steps == newest.steps and commit != newest)
            if commit.generation <= newest.generation and beyond:
                files.delete(commit)


def _delete_parts(names: Iterable[str], files: CheckpointFiles, generation: int | None, *, up_to: int) -> None:
    for name in names:
        origin = origin_of_part(name)
        if origin.steps <= up_to and not _is_later(origin, generation):
            files.delete_part(name)


def _is_over(files: CheckpointFiles, generation: int | None) -> bool:
    """Whether a later generation has begun."""
    return generation is not None and later(files.fences(), generation) is not None


def _is_later(commit: Commit, generation: int | None) -> bool:
    return generation is not None and commit.generation > generation
