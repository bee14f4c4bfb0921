"""From a config's name and ``--set`` overrides to a checked ``Config``.

A name is a shipped file without its ending (``local/flights``) or the path of a YAML file. A file may say
``extends: base/flights``: what it does not mention comes from there. Later wins: base, file, ``--set``.
YAML is read with the safe loader only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, nearest


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Load, merge and check a config.

    Args:
        name: A shipped name such as ``local/flights``, or the path of a YAML file.
        overrides: ``key.path=value`` texts; values are read as YAML.
    Returns:
        The frozen config.
    Raises:
        ConfigError: no such file, not YAML, an unknown key, or a value that does not fit.
    """
    merged = _with_parents(name, seen=())
    for override in overrides:
        merged = _merge(merged, _parse_override(override))
    return parse_config(merged, origin=name)


def parse_config(values: Mapping[str, Any], *, origin: str) -> Config:
    """Check plain values against the schema; ``origin`` is named in errors."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, origin)) from None


def shipped_configs() -> list[str]:
    """Names of the configs in the package, e.g. ``local/flights``."""
    root = resources.files("sparkring.conf")
    folders = (entry for entry in root.iterdir() if entry.is_dir())
    return sorted(f"{folder.name}/{file.name.removesuffix('.yaml')}"
                  for folder in folders for file in folder.iterdir() if file.name.endswith(".yaml"))


def _with_parents(name: str, *, seen: tuple[str, ...]) -> dict[str, Any]:
    if name in seen:
        raise ConfigError(f"config {name} extends itself ({' -> '.join([*seen, name])}); remove one `extends`.")
    values = _read(name)
    parent = values.pop("extends", None)
    return values if parent is None else _merge(_with_parents(str(parent), seen=(*seen, name)), values)


def _read(name: str) -> dict[str, Any]:
    shipped = resources.files("sparkring.conf").joinpath(f"{name}.yaml")
    if shipped.is_file():
        text = shipped.read_text(encoding="utf-8")
    elif Path(name).is_file():
        text = Path(name).read_text(encoding="utf-8")
    else:
        known = shipped_configs()
        raise ConfigError(f"no config named {name}: not a file, and not one of {', '.join(known)}{nearest(name, known)}")
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"config {name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"config {name} holds a {type(values).__name__}, expected keys and values such as `name: flights`.")
    return values


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r} is not of the form key.path=value, e.g. --set train.epochs=2")
    try:
        parsed: Any = yaml.safe_load(value)
    except yaml.YAMLError:
        parsed = value
    for part in reversed(_key_path(key.strip())):
        parsed = {part: parsed}
    return dict(parsed)


def _key_path(key: str) -> list[str]:
    """Split ``a.b.c``; below ``spark.conf`` the rest is one Spark property, which has dots of its own."""
    if key.startswith("spark.conf."):
        return ["spark", "conf", key.removeprefix("spark.conf.")]
    return key.split(".")


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _explain(error: ValidationError, origin: str) -> str:
    """One line for the first complaint, and how many more there are."""
    complaints = error.errors(include_url=False)
    # An unknown key is named first: a misspelt one also shows up as a missing one.
    first = min(complaints, key=lambda complaint: complaint["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        section = _section(Config, [str(part) for part in first["loc"][:-1]])
        known = list(section.model_fields) if section else []
        hint = nearest(str(first["loc"][-1]), known)
        text = f"config {origin}: unknown key {where}{hint} (known here: {', '.join(known)})"
    elif first["type"] == "missing":
        text = f"config {origin}: {where} is required and has no value; add it to the file or give --set {where}=..."
    else:
        found = "" if isinstance(first["input"], Mapping | BaseModel) else f" (found {first['input']!r})"
        text = f"config {origin}: {where or 'value'}: {first['msg'].removeprefix('Value error, ')}{found}"
    more = len(complaints) - 1
    return text + (f" ({more} more like it)" if more else "")


def _section(model: type[BaseModel], path: Iterable[str]) -> type[BaseModel] | None:
    """The model that describes ``path``, or None where the path leaves the models (inside a dict)."""
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            continue  # a name inside a dict of sections, e.g. prepare.sources.flights
        candidates = [field.annotation, *get_args(field.annotation)]
        sections = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not sections:
            return None
        model = sections[0]
    return model
