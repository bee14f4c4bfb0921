"""Where the relative paths of a config begin: at the folder of the file that holds them.

    /home/you/conf/orders.yaml       path: ../data/orders.csv      ->  /home/you/data/orders.csv
                                     path: hdfs:///data/orders     stays: it has a scheme
    --set, keywords, shipped configs path: data/orders.csv         stays: the current folder

The schema marks the keys that hold paths (``LocalPath``). Pure; what lies at a path is for others to find out.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkring.conf.keys import holds_path, models_in, names_sections
from sparkring.conf.schema import Config

_NOT_RELATIVE = re.compile(r"/|~|[A-Za-z][A-Za-z0-9+.-]*:|$")
"""The beginning of an absolute path, a home folder (which the schema refuses), a URL, or nothing at all."""


def anchored(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The plain values of a config with each relative path made absolute.

    Args:
        values: As a file holds them, not checked yet: keys may be unknown, and values of another type.
        folder: Where relative paths begin.
    """
    return _section(values, [Config], folder)


def _section(values: Mapping[str, Any], models: Sequence[type[BaseModel]], folder: Path) -> dict[str, Any]:
    """Of several models, any may be the one that is meant: no key holds a path in one of them and something else in another."""
    return {key: _value(value, [model.model_fields[key] for model in models if key in model.model_fields], folder)
            for key, value in values.items()}


def _value(value: Any, fields: Sequence[FieldInfo], folder: Path) -> Any:
    if isinstance(value, str):
        return _path(value, folder) if any(map(holds_path, fields)) else value
    if isinstance(value, list):
        return [_value(each, fields, folder) for each in value]
    inner = [model for field in fields for model in models_in(field.annotation)]
    if not isinstance(value, Mapping) or not inner:
        return value
    if any(map(names_sections, fields)):
        return {name: _section(each, inner, folder) if isinstance(each, Mapping) else each for name, each in value.items()}
    return _section(value, inner, folder)


def _path(path: str, folder: Path) -> str:
    return path if _NOT_RELATIVE.match(path) else os.path.abspath(folder / path)  # noqa: PTH100 (resolve() would follow links)
