r"""Names as they are: Spark's readers take a path for a pattern wherever it holds one of ``{ } [ ] * ? \``.

    /data/a[1].csv    is looked for as   /data/a1.csv
    /data/a\[1\].csv  is                 /data/a[1].csv

What a user names on this machine, and what a manifest names, are names. Writers take them as they are. Pure.
Source: Hadoop 3.4, ``FileSystem.globStatus``, ``GlobPattern`` and ``Globber``.
"""

from __future__ import annotations

import re
from pathlib import Path

from sparkring.errors import ConfigError, SourceError

_SPECIAL = re.compile(r"[{}\[\]*?\\]")


def literal(address: str) -> str:
    """What a reader of Spark must be given to read exactly this file or folder.

    Args:
        address: As ``spark_path`` gives it: a path, a URL or ``file:`` and a path.
    Raises:
        ConfigError: it holds a colon, too, and Hadoop's search fails on such names.
    """
    scheme, mark, rest = address.partition("://")
    host, slash, inside = rest.partition("/") if mark else ("", "", address)
    if not _SPECIAL.search(inside):
        return address
    if ":" in inside.removeprefix("file:"):
        raise ConfigError(f"{address} holds a colon beside one of {{}}[]*?\\, and Spark can read no such name; rename the folder or file.")
    escaped = _SPECIAL.sub(lambda found: "\\" + found[0], inside)
    return f"{scheme}{mark}{host}{slash}{escaped}" if mark else escaped


def require_readable(name: str, file: Path) -> None:
    """See that Spark would read a file of this machine.

    Args:
        name: The source's, for the error.
        file: What it would read.
    Raises:
        SourceError: it passes over such names, or fails on them.
    """
    if ":" in file.name:
        raise SourceError(f"source {name}: Spark cannot open {file}, since its name holds a colon; rename the file.")
    if file.name.startswith(("_", ".")):
        raise SourceError(f"source {name}: Spark passes over {file}, as over all names that begin with _ or a dot; rename the file.")
