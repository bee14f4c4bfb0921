"""YAML as configs have it: the safe loader, without duplicate keys and aliases."""

from __future__ import annotations

from typing import Any

import yaml

from sparkring.errors import ConfigError


def parse_file(text: str, *, origin: str) -> dict[str, Any]:
    """The keys and values of a file.

    Raises:
        ConfigError: it is not such YAML; ``origin`` is named.
    """
    try:
        values = yaml.load(text, Loader=_Loader)  # noqa: S506 - it is the safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date such as 2013-10-32 is a ValueError
        raise ConfigError(f"config {origin} is not valid YAML ({' '.join(str(error).split())}); correct it there") from None
    if not isinstance(values, dict):
        raise ConfigError(f"config {origin} holds a {type(values).__name__}, expected keys and values; write e.g. `name: flights`.")
    return values


def parse_value(text: str) -> Any:
    """The value of a text; the text itself if it is not such YAML."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - it is the safe loader
    except (yaml.YAMLError, ValueError):
        return text


def why_no_yaml(value: object) -> str:
    """Why a text that begins like a mapping or a list is neither, as YAML says it; else an empty text."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return ""
    try:
        yaml.load(value, Loader=_Loader)  # noqa: S506 - it is the safe loader
    except yaml.MarkedYAMLError as error:
        place = f" at character {error.problem_mark.index + 1}" if error.problem_mark else ""
        return f"{error.problem}{place}"
    except (yaml.YAMLError, ValueError) as error:
        return " ".join(str(error).split())
    return ""


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
