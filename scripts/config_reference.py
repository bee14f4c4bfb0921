"""Write ``docs/reference/config.md``, the page of all config keys, from the docstrings, types and defaults of the schema.

    python -m scripts.config_reference

Each section of the config becomes a section of the page, and each kind of a section that has several one of its own.
"""

from __future__ import annotations

import ast
import datetime as dt
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkring.conf.keys import models_in, names_sections
from sparkring.conf.schema import Config
from sparkring.conf.schema.base.section import IS_PATH

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/config.md"
WIDTH = 120
HEAD = """# Config keys

Written by `python -m scripts.config_reference` from [conf/schema/](../../conf/schema); do not edit.

A config is a YAML file with these keys. A key in a section is named with its path: `train.epochs` is the key `epochs` in
the section `train`. On the command line, `--set train.epochs=2` changes one value; in Python,
`sparkring.train(config, epochs=2)` and `sparkring.load_config(config, train={"epochs": 2})` do. Unknown keys are errors.

- `extends: base/flights` takes all keys that a file does not mention from another config: a shipped one, or a file, whose
  path begins at the folder of the file that names it.
- A relative *path* in a file begins at the folder of that file. In `--set`, in Python and in shipped configs it begins at
  the current folder. Absolute paths and URLs stay as they are.
"""
LIMITS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most", "min_length": "with at least", "max_length": "with at most"}
LARGEST = 2**62
"""Limits beyond this are those of 64 bits, and are left out."""
PLAIN = {bool: "true or false", int: "whole number", float: "number", str: "text", dt.datetime: "time", NoneType: "null"}


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_sections([Config], path=""))


def _sections(models: Sequence[type[BaseModel]], *, path: str) -> Iterator[str]:
    """The section of ``path``, in each of its kinds, then the sections inside."""
    for model in models:
        yield f"\n{_title(model, models, path)}\n\n{_wrapped(_prose(inspect.getdoc(model) or ''))}\n\n"
        yield "".join(_keys(model, path))
    seen: set[str] = set()
    for model in models:
        for name, inner in model.model_fields.items():
            if models_in(inner.annotation) and name not in seen:
                seen.add(name)
                yield from _sections(models_in(inner.annotation), path=_inside(path, name, inner))


def _title(model: type[BaseModel], models: Sequence[type[BaseModel]], path: str) -> str:
    kinds = "" if len(models) == 1 else f" ({_kind(model)})"
    return f"{'###' if '.' in path else '##'} {path or 'Top level'}{kinds}"


def _kind(model: type[BaseModel]) -> str:
    """The key that chooses a model among several, and its words."""
    name = next(name for name, field in model.model_fields.items() if get_origin(field.annotation) is Literal)
    return f"{name}: {', '.join(get_args(model.model_fields[name].annotation))}"


def _keys(model: type[BaseModel], path: str) -> Iterator[str]:
    docs = _docstrings(model)
    for name, field in model.model_fields.items():
        inner = models_in(field.annotation)
        named = "sections by name" if names_sections(field) else "section"
        kind = named if inner and not _in_list(field) else type_words(field.annotation, field.metadata)
        about = ", ".join(filter(None, [kind, _default(field, inner)]))
        sections = _heading_link(inner, _inside(path, name, field)) if inner else ""
        text = " ".join(filter(None, [_prose(docs.get(name, "")), sections]))
        if len(get_args(field.annotation)) == 1 and get_origin(field.annotation) is Literal:
            text = "Chooses this kind."
        yield _wrapped(f"`{name}` ({about}): {text}", bullet=True) + "\n"


def _inside(path: str, name: str, field: FieldInfo) -> str:
    return ".".join(filter(None, [path, name, "NAME" if names_sections(field) else ""]))


def _in_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is tuple


def _heading_link(models: Sequence[type[BaseModel]], path: str) -> str:
    title = _title(models[0], models, path).lstrip("# ")
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return f"See [{path}](#{anchor})."


def _default(field: FieldInfo, inner: Sequence[type[BaseModel]]) -> str:
    if field.is_required():
        return "required"
    if inner and not _in_list(field):
        return "default `null`" if field.default is None else ""
    default = field.get_default(call_default_factory=True)
    return f"default `{json.dumps(default) if default is not None else 'null'}`"


def type_words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """A type and its limits in words, e.g. ``whole number above 0``."""
    flat = [each for item in metadata for each in (item.metadata if isinstance(item, FieldInfo) else [item])]
    limits = " and ".join(f"{words} {getattr(each, name)}" for each in flat for name, words in LIMITS.items()
                          if hasattr(each, name) and abs(getattr(each, name)) < LARGEST)
    if IS_PATH in flat:
        return "path"
    return f"{_bare(annotation)} {limits}".strip()


def _bare(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(inside[0], inside[1:])
    if origin is Literal:
        return _either([f"`{word}`" for word in inside])
    if origin in (Union, UnionType):
        return _either(list(dict.fromkeys(map(type_words, inside))))
    if origin is tuple:
        each = type_words(inside[0]).replace("section", "sections")
        return f"list of {each}" if inside[-1] is Ellipsis else f"list of {len(inside)}, {each} each"
    if origin is dict:
        return f"mapping of {type_words(inside[0])} to {type_words(inside[1])}"
    return "section" if inspect.isclass(annotation) and issubclass(annotation, BaseModel) else PLAIN.get(annotation, "any value")


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field, those of base classes too."""
    found = {}
    for base in reversed([base for base in model.__mro__ if base.__module__.startswith("sparkring.")]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _prose(docstring: str) -> str:
    """A docstring as Markdown: code in single backticks, and pages as links."""
    text = docstring.replace("``", "`")
    text = re.sub(r"docs/([\w/-]+\.md)", r"[\1](../\1)", text)
    text = re.sub(r"docs/(adr/\d+)", lambda found: f"[{found[1]}](../adr/{next((ROOT / 'docs').glob(f'{found[1]}-*.md')).name})", text)
    return re.sub(r"\bSECURITY\.md", "[SECURITY.md](../../SECURITY.md)", text)


def _wrapped(text: str, *, bullet: bool = False) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="- " if bullet else "", subsequent_indent="  " if bullet else "",
                         break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
