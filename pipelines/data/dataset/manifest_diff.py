"""The differences between two versions of a dataset: schema, rows, fitted statistics, vocabularies, recipe and source.

Pure: two manifests in, rows of a table out. Fitted values of all kinds of features are compared leaf by leaf. Of a list
of texts, such as a vocabulary, only the new texts and the removed ones are reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.row_schema import DataField

SHOWN_WORDS = 5
SHOWN_TEXT = 60


@dataclass(frozen=True)
class Difference:
    """One difference between two versions."""

    section: str
    """``schema``, ``tensors``, ``rows``, ``preprocessing``, ``recipe`` or ``source``."""
    what: str
    """Path of the value inside its section, e.g. ``numeric.km.mean``."""
    before: str
    """Empty if the first version lacks the value."""
    after: str
    """Empty if the second version lacks the value."""


def diff_manifests(before: Manifest, after: Manifest) -> list[Difference]:
    """List the differences, section by section; empty if both versions have the same content, made in the same way."""
    return [
        *_section("schema", {field.name: describe_field(field) for field in before.fields},
                  {field.name: describe_field(field) for field in after.fields}),
        *_section("tensors", *({spec.name: spec.model_dump(mode="json", exclude={"name"}) for spec in side.tensors}
                               for side in (before, after))),
        *_section("rows", _rows(before), _rows(after)),
        *_section("preprocessing", *(side.preprocessing.model_dump(mode="json") for side in (before, after))),
        *_section("recipe", before.recipe, after.recipe),
        *_section("source", before.source, after.source),
    ]


def describe_field(field: DataField) -> str:
    """A column in words, e.g. ``uint8 (28, 28) png, may be null``."""
    shape = f" ({', '.join('any' if size is None else str(size) for size in field.shape)})" if field.shape else ""
    codec = "" if field.codec == "scalar" else f" {field.codec}"
    return f"{field.dtype}{shape}{codec}{', may be null' if field.nullable else ''}"


def _rows(manifest: Manifest) -> dict[str, Any]:
    return {name: {"rows": split.rows, "files": len(split.files), "row groups": sum(len(file.row_groups) for file in split.files),
                   "bytes": sum(file.bytes for file in split.files), "rows digest": split.rows_digest}
            for name, split in manifest.splits.items()}


def _section(section: str, before: Any, after: Any) -> list[Difference]:
    return [Difference(section, what, *texts) for what, *texts in _differences("", before, after)]


def _differences(path: str, before: Any, after: Any) -> Iterator[tuple[str, str, str]]:
    """(path, before, after) of each leaf that differs."""
    before, after = _by_name(before), _by_name(after)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _differences(f"{path}.{key}" if path else str(key), before.get(key), after.get(key))
    elif _are_words(before) and _are_words(after):
        if list(before) != list(after):
            yield path, *_words(before, after)
    elif not _equal(before, after):
        yield path, _text(before), _text(after)


def _by_name(value: Any) -> Any:
    """Turn a list of features into a mapping by column, so that an inserted feature does not shift the others."""
    if isinstance(value, Sequence) and not isinstance(value, str) and value and all(isinstance(item, Mapping) for item in value):
        keys = [item.get("column") or item.get("name") for item in value]
        if all(keys) and len(set(keys)) == len(keys):
            return dict(zip(keys, value, strict=True))
    return value


def _are_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)


def _words(before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    """The number of texts before, and the number after with the new and the removed ones."""
    known, kept = set(before), set(after)
    new, gone = [word for word in after if word not in known], [word for word in before if word not in kept]
    changes = [f"{how} {_few(words)}" for how, words in (("new:", new), ("gone:", gone)) if words] or ["in another order"]
    return f"{len(before)} values", f"{len(after)} values; {'; '.join(changes)}"


def _few(words: Sequence[str]) -> str:
    more = f" and {len(words) - SHOWN_WORDS} more" if len(words) > SHOWN_WORDS else ""
    return f"{', '.join(words[:SHOWN_WORDS])}{more}"


def _equal(before: Any, after: Any) -> bool:
    both = isinstance(before, float) and isinstance(after, float)
    return before == after or (both and math.isnan(before) and math.isnan(after))


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}..."
