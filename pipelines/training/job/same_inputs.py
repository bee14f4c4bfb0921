"""Whether the inputs of a trained model mean the same in a dataset: the order of columns, the ids of categories, the classes. Pure.

A dataset made by ``prepare --append`` has its parent's preprocessing, so a model of the parent fits it. A dataset that is prepared as a
whole is fitted again: an id may stand for another value there, and a number may be scaled otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkring.conf.schema import Task
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing


def other_meanings(theirs: tuple[Task, Preprocessing], mine: tuple[Task, Preprocessing]) -> list[str]:
    """What inputs or outputs mean something else: a model would have to learn it again.

    Args:
        theirs: The task and the preprocessing of the model.
        mine: Those of the dataset.
    Returns:
        What differs, in words.
    """
    return _differing(dict(_meanings(*theirs)), dict(_meanings(*mine)))


def other_scales(theirs: Preprocessing, mine: Preprocessing) -> list[str]:
    """Which numbers, of those that both have, are filled or scaled by other figures: a model soon adapts to that."""
    return _differing(dict(_scales(theirs)), dict(_scales(mine)))


def _differing(theirs: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    return [what for what in mine if what in theirs and theirs[what] != mine[what]]


def _meanings(task: Task, features: Preprocessing) -> Iterator[tuple[str, Any]]:
    yield "the task", task
    yield "the classes", features.classes
    yield "the numbers and their order", features.numeric_columns
    yield "the categories and their order", [feature.column for feature in features.with_ids]
    for number in features.numeric:
        yield f"the number {number.column}", (number.moment, number.scale == "log1p")
    for category in features.categorical:
        yield f"the ids of {category.column}", (category.moment, category.vocabulary)
    for bucket in features.buckets:
        yield f"the ids of {bucket.column}", (bucket.of, bucket.edges)
    for hashed in features.hashed:
        yield f"the ids of {hashed.column}", (hashed.of, hashed.ids, hashed.seed)
    tokens = features.tokens
    yield "the tokens", tokens and (tokens.tokenizer_sha256, tokens.vocabulary, tokens.end_id, tokens.pad_id, tokens.mask)


def _scales(features: Preprocessing) -> Iterator[tuple[str, Any]]:
    for number in features.numeric:
        yield number.column, (number.centre, number.spread, number.filled_with)
    if features.image:
        yield features.image.column, (features.image.mean, features.image.std)
