"""From what users give as a config (a name, a path, a mapping), ``--set`` overrides and keywords to a checked ``Config``.

A name is a shipped file without its ending (``local/flights``) or the path of a YAML file. A file may say
``extends: base/flights``: keys that it does not mention come from there (a shipped name, or a path relative to the file
that extends it). Later wins: base, file, ``--set``, keywords. Mappings are merged key by key; anything else is replaced whole.
So is a split, model, strategy or source by one of another kind. Relative paths begin at the folder of the file that holds
them (paths.py).
"""

from __future__ import annotations

import inspect
import os.path
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from importlib import resources
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkring.conf.keys import models_in
from sparkring.conf.paths import anchored
from sparkring.conf.problems import explain
from sparkring.conf.schema import Config, kind_of_source
from sparkring.conf.schema.data.splits import IN_PLACE_OF
from sparkring.conf.schema.strategy import in_full
from sparkring.conf.strict_yaml import parse_file, parse_value
from sparkring.errors import ConfigError, in_lines, nearest, nearest_of

ConfigLike = str | PathLike[str] | Mapping[str, Any] | Config
"""What may be given as a config: a shipped name, the path of a YAML file, plain keys and values, or a loaded config."""


def load_config(config: ConfigLike, overrides: Sequence[str] = (), **keys: Any) -> Config:
    """Load, merge and check a config.

    Args:
        config: A shipped name such as ``local/flights``, the path of a YAML file, a mapping of keys to values, or a config.
        overrides: ``key.path=value`` texts; values are read as YAML.
        keys: Keys of the config that win over all others, e.g. ``workspace="runs/x"`` or ``train={"epochs": 2}``.
    Returns:
        The frozen config.
    Raises:
        ConfigError: no such file, not YAML, unknown keys, or values that do not fit; all of them are named.
    """
    return _loaded(config, overrides, keys, as_written=False)


def load_as_written(config: ConfigLike, overrides: Sequence[str] = ()) -> Config:
    """``load_config`` without a change to relative paths: for a config that another machine will read."""
    return _loaded(config, overrides, {}, as_written=True)


def config_of_job(job: Callable[..., Any], config: ConfigLike, keys: Mapping[str, Any], *, section: str | None = None) -> Config:
    """The config of a job that was called with keywords which are not its own.

    Args:
        job: The function that was called.
        config: Its first argument.
        keys: The other keywords: keys of ``section``, or of the whole config.
        section: The section that the job is about, e.g. ``train``.
    Raises:
        ConfigError: as ``load_config``; or a keyword is neither the job's own nor a key.
    """
    own = [name for name, parameter in inspect.signature(job).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    inside = models_in(Config.model_fields[section].annotation)[0].model_fields if section else {}
    known = [*own, *inside, *Config.model_fields]
    unknown = [f"no keyword {key}{nearest(key, known) or '; it has ' + ', '.join(known)}" for key in keys if key not in known]
    if unknown:
        raise ConfigError(in_lines(f"{job.__name__}()", unknown))
    mine = {key: value for key, value in keys.items() if key in inside}
    others = {key: value for key, value in keys.items() if key not in inside}
    return load_config(config, **_merge(others, {section: mine} if section and mine else {}))


def parse_config(values: Mapping[str, Any], *, origin: str) -> Config:
    """Check plain values against the schema; ``origin`` is named in errors."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, origin)) from None


def shipped_configs() -> list[str]:
    """Names of the configs in the package, e.g. ``local/flights``."""
    root = resources.files("sparkring.conf")
    folders = (entry for entry in root.iterdir() if entry.is_dir())
    return sorted(f"{folder.name}/{file.name.removesuffix('.yaml')}"
                  for folder in folders for file in folder.iterdir() if file.name.endswith(".yaml"))


def _loaded(config: ConfigLike, overrides: Sequence[str], keys: Mapping[str, Any], *, as_written: bool) -> Config:
    if isinstance(config, Config):
        if not overrides and not keys:
            return config
        values, origin = config.model_dump(exclude_unset=True), config.name
        if "strategy" in values.get("train", {}):  # one that Python made has a kind of its own, which nobody set
            values["train"]["strategy"]["kind"] = config.train.strategy.kind
    elif isinstance(config, Mapping):
        values, origin = _over_parents(config, folder=Path(), seen=(), as_written=as_written), "(a mapping)"
    else:
        origin = fspath(config)
        values = _with_parents(origin, folder=Path(), seen=(), as_written=as_written)
    return parse_config(reduce(_merge, [*map(_parse_override, overrides), keys], values), origin=origin)


def _with_parents(name: str, *, folder: Path, seen: tuple[str, ...], as_written: bool) -> dict[str, Any]:
    """Values of ``name``, looked for from ``folder``, over those of the config that it extends."""
    known, beside = shipped_configs(), folder / name
    # os.path takes a name that no file can have for one that does not exist, and a pipe is as good as a file
    if name not in known and (os.path.isdir(beside) or not os.path.exists(beside)):  # noqa: PTH110, PTH112
        meant = f"; give {name}.yaml" if os.path.isfile(f"{beside}.yaml") else (  # noqa: PTH113
            _nearest_file(beside) or nearest(name, known))
        raise ConfigError(f"no config named {name}: not a YAML file, and not one of {', '.join(known)}"
                          f"{meant or '; name one of these, or give the path of a file'}")
    source = resources.files("sparkring.conf").joinpath(f"{name}.yaml") if name in known else beside
    if str(source) in seen:
        raise ConfigError(f"config {name} extends itself ({' -> '.join([*seen, str(source)])}); remove one `extends`.")
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {name} cannot be read as text ({error}); give a YAML file in UTF-8") from None
    values = parse_file(text, origin=name)
    if source is beside and beside.is_file() and not as_written:  # a shipped config and a pipe have no folder of the user's
        values = anchored(values, beside.parent)
    return _over_parents(values, folder=beside.parent, seen=(*seen, str(source)), as_written=as_written)


def _nearest_file(missing: Path) -> str:
    """``; did you mean 'x'?`` for the YAML file beside a missing one that is most like it, if the missing one has the ending of one."""
    if missing.suffix not in (".yaml", ".yml") or not os.path.isdir(missing.parent):  # noqa: PTH112 - the name may be no file's
        return ""
    files = {file.stem: file for ending in ("*.yml", "*.yaml") for file in sorted(missing.parent.glob(ending))}
    found = nearest_of(missing.stem, files)
    return f"; did you mean {str(files[found])!r}?" if found is not None else ""


def _over_parents(values: Mapping[str, Any], *, folder: Path, seen: tuple[str, ...], as_written: bool) -> dict[str, Any]:
    """``values`` over those of the config that they extend, which is looked for from ``folder``."""
    own = {key: value for key, value in values.items() if key != "extends"}
    parent = values.get("extends")
    return own if parent is None else _merge(_with_parents(str(parent), folder=folder, seen=seen, as_written=as_written), own)


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r} is not of the form key.path=value; give e.g. --set train.epochs=2")
    parsed = parse_value(value)
    for part in reversed(_key_path(key.strip())):
        parsed = {part: parsed}
    return dict(parsed)


def _key_path(key: str) -> list[str]:
    """Split ``a.b.c``; below ``spark.conf`` and ``search.space`` the rest is one name, which has dots of its own."""
    for section in ("spark.conf", "search.space"):
        if key.startswith(f"{section}."):
            return [*section.split("."), key.removeprefix(f"{section}.")]
    return key.split(".")


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = in_full(merged.get(key)) if key == "strategy" else merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _another_kind(key, old, value):
            kept = {name: one for name, one in old.items() if key != "split" or IN_PLACE_OF.get(name) not in value}
            value = _merge(kept, value)  # noqa: PLW2901 - what stands here now
        merged[key] = value
    return merged


def _another_kind(key: str, old: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Whether ``value`` is another kind of section than ``old``, so that keys of the old one have no meaning in it."""
    if "format" in value:  # a source
        return kind_of_source(value) != kind_of_source(old)
    word, default = {"split": ("by", "time"), "model": ("kind", "tabular"), "strategy": ("kind", "exact")}.get(key, ("", ""))
    before = old.get(word, default)
    return bool(value.get(word, before) != before)
