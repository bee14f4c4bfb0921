"""Strategies as words of a command line: ``exact``, ``local_sgd:8``, ``stale_sync:4``. Pure."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from pydantic import ValidationError

from sparkring.conf.schema import TrainConfig
from sparkring.errors import ConfigError, nearest

KEY_OF_NUMBER = {"local_sgd": "every_steps", "stale_sync": "bound"}
"""The key that a number after a strategy's name stands for."""


def sections_of(words: str) -> dict[str, dict[str, Any]]:
    """The sections ``train.strategy`` that a list of words asks for.

    Args:
        words: Strategies, with commas between them.
    Returns:
        By word, in their order; with all of their keys, so that none is taken from the config's own strategy.
    Raises:
        ConfigError: a word is none, or two mean the same; or there is only one.
    """
    listed = [word.strip() for word in words.split(",") if word.strip()]
    found = {word: _section(word) for word in listed}
    if len(found) < len(listed):
        raise ConfigError(f"--strategies {words}: {max(listed, key=listed.count)} stands there twice; name each once.")
    same = next(((one, other) for one, other in combinations(found, 2) if found[one] == found[other]), None)
    if same:
        raise ConfigError(f"--strategies {words}: {same[0]} and {same[1]} mean the same; leave one out.")
    if len(found) < 2:
        raise ConfigError(f"--strategies {words or '(nothing)'}: a comparison needs at least two; name them, e.g. exact,local_sgd:8.")
    return found


def _section(word: str) -> dict[str, Any]:
    kind, _, number = word.partition(":")
    kinds = ["exact", *KEY_OF_NUMBER]
    if kind not in kinds:
        raise ConfigError(f"--strategies: {kind} is none{nearest(kind, kinds)}; give {', '.join(kinds)}, e.g. stale_sync:4.")
    if number and (kind not in KEY_OF_NUMBER or not number.isdecimal()):
        meant = ", ".join(f"{name}:{key.upper()}" for name, key in KEY_OF_NUMBER.items())
        raise ConfigError(f"--strategies: {word} is none: a whole number may follow in {meant}; leave out what follows the colon.")
    try:
        return TrainConfig.model_validate(
            {"strategy": {"kind": kind} | ({KEY_OF_NUMBER[kind]: int(number)} if number else {})}).strategy.model_dump()
    except ValidationError as error:
        raise ConfigError(f"--strategies: {word}: {error.errors()[0]['msg']}; give a larger number.") from None
