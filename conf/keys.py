"""The keys of the schema: which sections a key may hold, all keys with their paths, and those whose values are paths of files.

May be asked about any section. Not here: values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkring.conf.schema.base.section import IS_PATH


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """``Section`` of the annotations ``Section``, ``Section | None`` and ``dict[str, Section]``; several of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]


def all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of the schema with its path, e.g. ``train.ring.device``."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in models_in(field.annotation):
            yield from all_keys(inner, f"{prefix}{name}.")


def names_sections(field: FieldInfo) -> bool:
    """Whether the keys inside are names of the user's, e.g. ``prepare.sources.flights``."""
    return get_origin(field.annotation) is dict


def holds_path(field: FieldInfo) -> bool:
    """Whether the value is a ``LocalPath``."""
    return IS_PATH in field.metadata or _marked(field.annotation)


def _marked(annotation: Any) -> bool:
    return IS_PATH in getattr(annotation, "__metadata__", ()) or any(map(_marked, get_args(annotation)))
