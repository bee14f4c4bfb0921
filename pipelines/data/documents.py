"""Small JSON documents that say how a run stands: read, or refused as damaged in one line. Knows nothing of what they hold."""

from __future__ import annotations

import json
from typing import Any

from sparkring.errors import DocumentDamaged
from sparkring.pipelines.data.store import Store


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
    except ValueError as error:  # no JSON, or no text at all
        raise DocumentDamaged(store.path(name), found=f"no JSON ({error})", expected="a JSON object", remedy=remedy) from None
    if not isinstance(document, dict):
        raise DocumentDamaged(store.path(name), found=f"a JSON {type(document).__name__}", expected="a JSON object", remedy=remedy)
    missing = [key for key in keys if key not in document]
    if missing:
        raise DocumentDamaged(store.path(name), found=f"no {missing[0]}", expected=", ".join(keys), remedy=remedy)
    return document
