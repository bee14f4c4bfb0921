r"""Escaping names for Spark's readers, which take a path for a pattern if it holds one of ``{ } [ ] * ? \``.

    /data/a[1].csv    matches   /data/a1.csv
    /data/a\[1\].csv  matches   /data/a[1].csv

Local paths and paths of a manifest are names, not patterns. Spark's writers take names unchanged. Pure.
Source: Hadoop 3.4, ``FileSystem.globStatus``, ``GlobPattern`` and ``Globber``.
"""

from __future__ import annotations

import re
from pathlib import Path

from sparkring.errors import ConfigError, SourceError

_SPECIAL = re.compile(r"[{}\[\]*?\\]")


def literal(address: str) -> str:
    """Escape an address so that Spark's readers read exactly this file or folder.

    Args:
        address: A result of ``spark_path``: a path, a URL, or ``file:`` and a path.
    Raises:
        ConfigError: it would be escaped and holds a colon, on which Hadoop's pattern matching fails.
    """
    scheme, mark, rest = address.partition("://")
    host, slash, inside = rest.partition("/") if mark else ("", "", address)
    if not _SPECIAL.search(inside):
        return address
    if ":" in inside.removeprefix("file:"):
        raise ConfigError(f"{address} holds a colon and one of {{}}[]*?\\, and Spark cannot read such a name; rename the folder or file.")
    escaped = _SPECIAL.sub(lambda found: "\\" + found[0], inside)
    return f"{scheme}{mark}{host}{slash}{escaped}" if mark else escaped


def require_readable(name: str, file: Path) -> None:
    """Check that Spark reads a local file.

    Args:
        name: The source's name, for the error.
        file: The file.
    Raises:
        SourceError: Spark skips files of such names, or fails on them.
    """
    if ":" in file.name:
        raise SourceError(f"source {name}: Spark cannot open {file}, since its name holds a colon; rename the file.")
    if file.name.startswith(("_", ".")):
        raise SourceError(f"source {name}: Spark skips {file}, like all names that begin with _ or a dot; rename the file.")
