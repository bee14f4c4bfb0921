"""From a config's name and ``--set`` overrides to a checked ``Config``.

A name is a shipped file without its ending (``local/flights``) or the path of a YAML file. A file may say
``extends: base/flights``: keys that it does not mention come from there (a shipped name, or a path relative to the file
that extends it). Later wins: base, file, ``--set``. Mappings are merged key by key; anything else is replaced whole. So is
a split, model or source by one of another kind. YAML is read with the safe loader only; duplicate keys are an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sparkring.conf.schema import SECRET, Config, kind_of_source
from sparkring.errors import ConfigError, nearest

LONGEST_SHOWN = 200
"""Most characters of a wrong value that an error shows."""


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
    merged = _with_parents(name, folder=Path(), seen=())
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


def _with_parents(name: str, *, folder: Path, seen: tuple[str, ...]) -> dict[str, Any]:
    """Values of ``name``, looked for from ``folder``, over those of the config that it extends."""
    shipped = resources.files("sparkring.conf").joinpath(f"{name}.yaml")
    beside = folder / name
    if not shipped.is_file() and (beside.is_dir() or not beside.exists()):  # a pipe is as good as a file
        known = shipped_configs()
        raise ConfigError(f"no config named {name}: not a YAML file, and not one of {', '.join(known)}"
                          f"{nearest(name, known) or '; name one of these, or give the path of a file'}")
    source = shipped if shipped.is_file() else beside
    if str(source) in seen:
        raise ConfigError(f"config {name} extends itself ({' -> '.join([*seen, str(source)])}); remove one `extends`.")
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {name} cannot be read as text ({error}); give a YAML file in UTF-8") from None
    values = _parse_yaml(text, origin=name)
    parent = values.pop("extends", None)
    if parent is None:
        return values
    return _merge(_with_parents(str(parent), folder=beside.parent, seen=(*seen, str(source))), values)


def _parse_yaml(text: str, *, origin: str) -> dict[str, Any]:
    try:
        values = yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is the safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date such as 2013-10-32 is a ValueError
        raise ConfigError(f"config {origin} is not valid YAML ({' '.join(str(error).split())}); correct it there") from None
    if not isinstance(values, dict):
        raise ConfigError(f"config {origin} holds a {type(values).__name__}, expected keys and values; write e.g. `name: flights`.")
    return values


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses duplicate keys and aliases.

    In plain YAML the last of two equal keys wins silently. Nested aliases turn a small file into one that fills the memory.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            found = f"aliases such as *{event.anchor} are not allowed; write the value out, or use extends"
            raise yaml.composer.ComposerError(None, None, found, event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - yaml's
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"key {twice!r} is given twice; keep one", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r} is not of the form key.path=value; give e.g. --set train.epochs=2")
    try:
        parsed: Any = yaml.load(value, Loader=_Loader)  # noqa: S506 - _Loader is the safe loader
    except (yaml.YAMLError, ValueError):
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
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _another_kind(key, old, value):
            value = _merge(old, value)  # noqa: PLW2901 - what stands here now
        merged[key] = value
    return merged


def _another_kind(key: str, old: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Whether ``value`` is another kind of section than ``old``, so that keys of the old one have no meaning in it."""
    if "format" in value:  # a source
        return kind_of_source(value) != kind_of_source(old)
    word, default = {"split": ("by", "time"), "model": ("kind", "tabular")}.get(key, ("", ""))
    before = old.get(word, default)
    return bool(value.get(word, before) != before)


def _explain(error: ValidationError, origin: str) -> str:
    """One line: the first problem, and the number of others."""
    complaints = error.errors(include_url=False)
    # Name an unknown key first: a misspelt key also shows up as a missing one.
    first = min(complaints, key=lambda complaint: complaint["type"] != "extra_forbidden")
    more = len(complaints) - 1
    others = f" ({more} more problem{'s' if more > 1 else ''} in it)" if more else ""
    return f"config {origin}: {_complaint(first)}{others}"


def _complaint(error: ErrorDetails) -> str:
    path, section = _without_tags([str(part) for part in error["loc"]])
    where = ".".join(path)
    if isinstance(error["input"], bool) and error["type"] == "string_type":
        return _truth_value(path, found=error["input"])
    if error["type"] == "extra_forbidden":
        known = list(section.model_fields) if section else []
        elsewhere = [key for key in _all_keys(Config) if key.rpartition(".")[2] == path[-1]]
        hint = nearest(path[-1], known) or (f"; did you mean {elsewhere[0]!r}?" if elsewhere else "")
        return f"unknown key {where}{hint} (known here: {', '.join(known)})"
    if error["type"] == "missing":
        return f"{where} is required and has no value; add it to the file or give --set {where}=..."
    unsaid = isinstance(error["input"], Mapping | BaseModel) or error["type"] == SECRET or error["loc"][:2] == ("spark", "conf")
    text = repr(error["input"])
    found = "" if unsaid else f" (found {text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + ' ...'})"
    said = error["msg"].removeprefix("Value error, ")
    names_it = said.startswith((f"{where}.", f"{where}="))  # a check of several keys names each with its path
    return f"{said}{found}" if names_it or not where else f"{where}: {said}{found}"


def _truth_value(path: Sequence[str], *, found: bool) -> str:
    """What to do about a truth value in place of a text: YAML 1.1 makes one of more words than true and false."""
    key = path[-1] == "[key]"
    where, what = (".".join(path[:-2]), "a key") if key else (".".join(path), "the text")
    words = "yes, on or true" if found else "no, off or false"
    return f"{where}: {what} is {words}, which YAML reads as a truth value; quote it, e.g. '{words.partition(',')[0]}'"


def _without_tags(loc: Sequence[str]) -> tuple[list[str], type[BaseModel] | None]:
    """The path of keys as YAML has it, and the model that its last key belongs to (None inside a plain dict).

    Where a key takes one of several models, pydantic puts the chosen one's tag after it, e.g. ``model.image.widths``.
    """
    models: list[type[BaseModel]] = [Config]
    path = []
    named = False  # the next part is a name of the user's, e.g. prepare.sources.flights
    for place, part in enumerate(loc):
        if len(models) > 1 and not named:
            models = [model for model in models if part in _tags(model)]
            continue
        path.append(part)
        field = models[0].model_fields.get(part) if models and not named and place < len(loc) - 1 else None
        named = field is not None and get_origin(field.annotation) is dict
        if field is not None:
            models = _models_in(field.annotation)
    return path, models[0] if len(models) == 1 else None


def _tags(model: type[BaseModel]) -> set[Any]:
    """All words that may choose a model of a union, e.g. its ``kind``."""
    return {word for field in model.model_fields.values() for word in get_args(field.annotation) if isinstance(word, str)}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """``Section`` of the annotations ``Section``, ``Section | None`` and ``dict[str, Section]``; several of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of the schema with its path, e.g. ``train.ring.device``."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in _models_in(field.annotation):
            yield from _all_keys(inner, f"{prefix}{name}.")
