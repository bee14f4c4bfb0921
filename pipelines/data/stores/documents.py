"""Reading small JSON documents of a store: each is checked, and a damaged one is refused in one line."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sparkring.errors import DocumentDamaged
from sparkring.pipelines.data.stores.base import Store

_Model = TypeVar("_Model", bound=BaseModel)


class StrictModel(BaseModel):
    """A document, or a part of one: immutable, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_document(store: Store, name: str, *, keys: tuple[str, ...] = (), remedy: str) -> dict[str, Any]:
    """Read the JSON object called ``name``.

    Args:
        store: The folder of the document.
        name: Its name in the store.
        keys: Keys that it must have.
        remedy: The next step if it is damaged.
    Raises:
        FileNotFoundError: it does not exist.
        DocumentDamaged: it is not a JSON object with these keys.
    """
    try:
        document = json.loads(store.read(name))
    except (ValueError, RecursionError) as error:  # not JSON, not text, or nested too deeply
        raise DocumentDamaged(store.path(name), found=f"no JSON ({error})", expected="a JSON object", remedy=remedy) from None
    if not isinstance(document, dict):
        raise DocumentDamaged(store.path(name), found=f"a JSON {type(document).__name__}", expected="a JSON object", remedy=remedy)
    missing = [key for key in keys if key not in document]
    if missing:
        raise DocumentDamaged(store.path(name), found=f"no {missing[0]}", expected=", ".join(keys), remedy=remedy)
    return document


def read_model(store: Store, name: str, kind: type[_Model], *, expected: str, remedy: str) -> _Model:
    """Read the document called ``name`` and check it against its schema.

    Args:
        store: The folder of the document.
        name: Its name in the store.
        kind: Its schema.
        expected: The schema in words.
        remedy: The next step if it is damaged.
    Raises:
        FileNotFoundError: it does not exist.
        DocumentDamaged: it does not fit the schema.
    """
    document = read_document(store, name, remedy=remedy)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"
        raise DocumentDamaged(store.path(name), found=found, expected=expected, remedy=remedy) from None
