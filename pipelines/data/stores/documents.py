"""Small JSON documents that say how something stands: read, or refused as damaged in one line. Knows nothing of what they hold."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sparkring.errors import DocumentDamaged
from sparkring.pipelines.data.stores.base import Store

_Model = TypeVar("_Model", bound=BaseModel)


class StrictModel(BaseModel):
    """A document, or a part of one, that never changes once it is read and that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def read_document(store: Store, name: str, *, keys: tuple[str, ...] = (), remedy: str) -> dict[str, Any]:
    """The JSON object called ``name``.

    Args:
        store: The folder that it lies in.
        name: Its name there.
        keys: What it must have at least.
        remedy: What to do if it is damaged.
    Raises:
        FileNotFoundError: there is none.
        DocumentDamaged: it is something else.
    """
    try:
        document = json.loads(store.read(name))
    except (ValueError, RecursionError) as error:  # no JSON, no text at all, or a nest without end
        raise DocumentDamaged(store.path(name), found=f"no JSON ({error})", expected="a JSON object", remedy=remedy) from None
    if not isinstance(document, dict):
        raise DocumentDamaged(store.path(name), found=f"a JSON {type(document).__name__}", expected="a JSON object", remedy=remedy)
    missing = [key for key in keys if key not in document]
    if missing:
        raise DocumentDamaged(store.path(name), found=f"no {missing[0]}", expected=", ".join(keys), remedy=remedy)
    return document


def read_model(store: Store, name: str, kind: type[_Model], *, expected: str, remedy: str) -> _Model:
    """The document called ``name``, checked against its schema.

    Args:
        store: The folder that it lies in.
        name: Its name there.
        kind: What it is.
        expected: The same in words.
        remedy: What to do if it is damaged.
    Raises:
        FileNotFoundError: there is none.
        DocumentDamaged: it is something else.
    """
    document = read_document(store, name, remedy=remedy)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"
        raise DocumentDamaged(store.path(name), found=found, expected=expected, remedy=remedy) from None
