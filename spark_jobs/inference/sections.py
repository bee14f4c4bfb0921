"""A choice as a section of the config: plain values for the estimator, or commented YAML for a person who will change it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from sparkring.spark_jobs.etl.columns.roles import can_name_a_column
from sparkring.spark_jobs.inference.choose import NULLS_WORTH_A_COLUMN, Choice, Choices, Use

MOST_HASHED_IDS = 1 << 16
LONGEST_COMMENT = 200
"""Characters of a text in a comment."""
VALIDATION_SHARE = TEST_SHARE = 0.1
_KEYS: tuple[Use, ...] = ("numeric", "categorical", "moments", "hashed")


def features_of(choices: Choices) -> dict[str, Any]:
    """``prepare.features``, with the columns in the table's order."""
    found: dict[str, Any] = {key: [_entry(choice) for choice in choices.of(key)] for key in _KEYS}
    images = choices.of("image")
    return {key: entries for key, entries in found.items() if entries} | ({"image": {"column": images[0].column}} if images else {})


def model_of(choices: Choices) -> dict[str, Any]:
    """``model``: the network for images if there is an image, else the one for tables."""
    return {"kind": "image" if choices.of("image") else "tabular"}


def names_in_query(columns: Sequence[str]) -> dict[str, str]:
    """For each column of the table a name that a dataset's column can have, its own if possible; no two differ in capitals alone."""
    found = {name: name for name in columns if can_name_a_column(name)}
    taken = {name.lower() for name in found}
    for name in columns:
        if name not in found:
            word = re.sub("__+", "_", "".join(sign if f"a{sign}".isidentifier() else "_" for sign in name)).strip("_")
            word = word if can_name_a_column(word) else f"c_{word}".rstrip("_")
            found[name] = next(free for free in (word, *(f"{word}_{number}" for number in range(2, len(columns) + 2)))
                               if free.lower() not in taken)
            taken.add(found[name].lower())
    return {name: found[name] for name in columns}


def as_yaml(choices: Choices, *, name: str, source: dict[str, Any], names: Mapping[str, str], workspace: str) -> str:
    """The whole config as commented YAML.

    Args:
        choices: What was chosen for the columns of the query.
        name: The config's name, also the table's in the query.
        source: ``prepare.sources.<name>``.
        names: Each column's name in the query, by that in the table.
        workspace: The folder for everything that is made.
    """
    return "\n".join(_lines(choices, name=name, source=source, names=names, workspace=workspace)) + "\n"


def _lines(choices: Choices, *, name: str, source: dict[str, Any], names: Mapping[str, str], workspace: str) -> Iterator[str]:
    yield "# Written by `sparkring init`. Every line may be changed; `sparkring doctor` checks it, `sparkring prepare` runs it."
    yield f"name: {_text(name)}"
    yield f"workspace: {_text(workspace)}  # everything that is made: dataset, runs, scores, reports"
    yield "spark:"
    yield "  master: local[2]  # this machine, two tasks at once; leave it out under spark-submit and in notebooks"
    yield ""
    yield "prepare:"
    yield "  sources:"
    yield f"    {_text(name)}: {_text(source)}"
    left_out = choices.of("left out")
    yield f"  query: {_text(_query(name, names))}"
    yield f"  label: {_text(choices.label)}  # {_comment(choices.label_why)}"
    yield f"  task: {choices.task}"
    yield "  features:"
    for key in _KEYS:
        if choices.of(key):
            yield f"    {key}:"
            yield from (f"      - {_text(_entry(choice))}  # {_comment(choice.why)}" for choice in choices.of(key))
    for image in choices.of("image")[:1]:
        yield f"    image: {_text({'column': image.column})}  # {_comment(image.why)}"
    if left_out:
        yield "  # Left out:"
        yield from (f"  #   {_comment(choice.column)}: {_comment(choice.why)}" for choice in left_out)
    yield "  split:  # each row falls by the hash of its content, so it stays where it is when rows are added"
    yield "    by: random"
    yield f"    validation_share: {VALIDATION_SHARE}"
    yield f"    test_share: {TEST_SHARE}"
    yield from ("  # If later rows are to be predicted from earlier ones, split by time instead: by: time, "
                f"column: {_comment(choice.column)}, validation_from: ..., test_from: ..." for choice in choices.of("moments")[:1])
    yield ""
    yield "model:"
    yield f"  kind: {model_of(choices)['kind']}"
    yield ""
    yield "train:"
    yield "  num_ranks: 2  # processes that train at once, each in a task of Spark's"
    yield "  epochs: 10"
    yield "  early_stopping: {patience_epochs: 3}"


def _entry(choice: Choice) -> Any:
    """The choice as an element of its list in ``prepare.features``."""
    match choice.use:
        case "numeric":
            return {"column": choice.column, "indicator": True} if choice.null_share >= NULLS_WORTH_A_COLUMN else choice.column
        case "moments":
            waves = ["day_of_week", "day_of_year"] if choice.is_date else ["hour", "day_of_week", "day_of_year"]
            return {"column": choice.column, "numbers": ["days"], "waves": waves}
        case "hashed":
            return {"column": choice.column, "ids": min(MOST_HASHED_IDS, 1 << (2 * choice.distinct).bit_length())}
        case _:
            return choice.column


def _query(table: str, names: Mapping[str, str]) -> str:
    """All columns of a table, each under its name in the query."""
    columns = [_quoted(name) + (f" AS {_quoted(alias)}" if alias != name else "") for name, alias in names.items()]
    selected = "*" if all(name == alias for name, alias in names.items()) else ", ".join(columns)
    return f"SELECT {selected} FROM {table if table.isidentifier() else _quoted(table)}"  # noqa: S608 - the user's own table and config


def _quoted(name: str) -> str:
    """``name`` as SQL reads any name."""
    return "`" + name.replace("`", "``") + "`"


def _text(value: Any) -> str:
    """A value on one line of YAML."""
    plain, quoted = (yaml.safe_dump(value, default_flow_style=True, default_style=style, width=math.inf, sort_keys=False,
                                    allow_unicode=True).removesuffix("...\n").strip() for style in (None, '"'))
    return plain if len(plain.splitlines()) == 1 else quoted


def _comment(text: str) -> str:
    """A text from the data as a part of a comment: on one line, of characters that YAML allows, and not too long."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= LONGEST_COMMENT else f"{line[:LONGEST_COMMENT - 3]}..."
