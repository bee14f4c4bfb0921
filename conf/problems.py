"""What is wrong with a config, in words: every problem that a check of the schema found, with its key and a remedy.

Not here: the checks (conf/schema).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sparkring.conf.keys import all_keys, models_in, names_sections
from sparkring.conf.schema import SECRET, Config
from sparkring.conf.strict_yaml import why_no_yaml
from sparkring.errors import in_lines, nearest, nearest_of

LONGEST_SHOWN = 200
"""Most characters of a wrong value that an error shows."""
UNKNOWN = "extra_forbidden"
"""Pydantic's type of an error about a key that the schema does not have."""
_TYPE = re.compile(r"str|int|float|constrained-\w+|\w+\[.*\]")
"""Pydantic's tag of a plain type, e.g. ``tuple[str, ...]``."""
_EXPECTED = "Input should be "
"""Pydantic's beginning of what a type wants."""


def explain(error: ValidationError, origin: str) -> str:
    """All problems, in one line if it is one, else with a line for each.

    Unknown keys come first. A missing key is left out where a misspelt one is told to be it. Checks of several keys together are not made
    before each key has a value that fits, so more may come to light later.
    """
    complaints = sorted(error.errors(include_url=False), key=lambda complaint: complaint["type"] != UNKNOWN)
    by_key: dict[str, ErrorDetails] = {}
    for each in complaints:  # pydantic complains once for each type that a value may have
        first = by_key.setdefault(".".join(_without_tags(each["loc"])[0]), each)
        if first is not each and first["type"] == "literal_error" and each["msg"].startswith(_EXPECTED):  # a word, or a number
            first["msg"] = f"{first['msg']} or {each['msg'].removeprefix(_EXPECTED)}"
    misspelt = {_hint(each) for each in by_key.values() if each["type"] == UNKNOWN}
    return in_lines(f"config {origin}", [_complaint(each) for key, each in by_key.items()
                                         if each["type"] != "missing" or key not in misspelt])


def _hint(error: ErrorDetails) -> str:
    """The whole path of the key that an unknown key is taken for, or an empty text."""
    path, section = _without_tags(error["loc"])
    found = nearest_of(path[-1], section.model_fields if section else ())
    return ".".join([*path[:-1], found]) if found else ""


def _complaint(error: ErrorDetails) -> str:
    path, section = _without_tags(error["loc"])
    where = ".".join(path)
    if isinstance(error["input"], bool) and error["type"] == "string_type":
        return _truth_value(path, found=error["input"])
    if error["type"] == UNKNOWN:
        known = list(section.model_fields) if section else []
        elsewhere = [key for key in all_keys(Config) if key.rpartition(".")[2] == path[-1]]
        if where in elsewhere:
            hint = f"; another kind of {where.rpartition('.')[0]} has it, so choose that kind, or leave it out"
        else:
            hint = f"; did you mean {elsewhere[0]!r}?" if elsewhere else nearest(path[-1], known)
        return f"unknown key {where}{hint} (known here: {', '.join(known)})"
    if error["type"] == "missing":
        return f"{where} is required and has no value; add it to the file or give --set {where}=..."
    unsaid = isinstance(error["input"], Mapping | BaseModel) or error["type"] == SECRET or error["loc"][:2] == ("spark", "conf")
    text = repr(error["input"])
    broken = why_no_yaml(error["input"])
    why = f", which is not valid YAML: {broken}" if broken else ""
    found = "" if unsaid else f" (found {text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + ' ...'}{why})"
    said = error["msg"].removeprefix("Value error, ")
    names_it = said.startswith((f"{where}.", f"{where}="))  # a check of several keys names each with its path
    return f"{said}{found}" if names_it or not where else f"{where}: {said}{found}"


def _truth_value(path: Sequence[str], *, found: bool) -> str:
    """What to do about a truth value in place of a text: YAML 1.1 makes one of more words than true and false."""
    key = path[-1] == "[key]"
    where, what = (".".join(path[:-2]), "a key") if key else (".".join(path), "the text")
    words = "yes, on or true" if found else "no, off or false"
    return f"{where}: {what} is {words}, which YAML reads as a truth value; quote it, e.g. '{words.partition(',')[0]}'"


def _without_tags(loc: Sequence[str | int]) -> tuple[list[str], type[BaseModel] | None]:
    """The path of keys as YAML has it, and the model that its last key belongs to (None inside a plain dict).

    Where a key takes one of several models or types, pydantic puts the chosen one's tag after it, e.g. ``model.image.widths``.
    """
    models: list[type[BaseModel]] = [Config]
    path: list[str] = []
    named = False  # the next part is a name of the user's, e.g. prepare.sources.flights
    for place, part in enumerate(map(str, loc)):
        if len(models) > 1 and not named:
            models = [model for model in models if part in _tags(model)]
            continue
        if not named and _TYPE.fullmatch(part):
            continue
        path.append(part)
        field = models[0].model_fields.get(part) if models and not named and place < len(loc) - 1 else None
        named = field is not None and names_sections(field)
        if field is not None:
            models = models_in(field.annotation)
    return path, models[0] if len(models) == 1 else None


def _tags(model: type[BaseModel]) -> set[Any]:
    """All words that may choose a model of a union, e.g. its ``kind``."""
    return {word for field in model.model_fields.values() for word in get_args(field.annotation) if isinstance(word, str)}
