r"""Escaping names for Spark's readers, which take a path for a pattern if it holds one of ``{ } [ ] * ? \``.

    /data/a[1].csv    matches   /data/a1.csv
    /data/a\[1\].csv  matches   /data/a[1].csv

Local paths and paths of a manifest are names, not patterns. Spark's writers take names unchanged. Pure.
Source: Hadoop 3.4, ``FileSystem.globStatus``, ``GlobPattern`` and ``Globber``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sparkring.errors import ConfigError, SourceError

_SPECIAL = re.compile(r"[{}\[\]*?\\]")
_HEAD = re.compile(r"([A-Za-z][\w+.-]*:)?(//[^/]*)?/*")


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


def folder_matched(pattern: str, files: Sequence[str]) -> str | None:
    """The one folder that a pattern matches on the way to files; None where it matches the files themselves, or several folders.

    Args:
        pattern: A path or URL, e.g. ``hdfs:///data/2013-*``.
        files: Addresses of files that Spark finds there, e.g. ``hdfs://host:8020/data/2013-01/day=1/a.csv``.
    """
    _, steps = _steps(pattern)
    matched = {head + "/".join(inside[:len(steps)]) for head, inside in map(_steps, files)}
    return None if len(matched) > 1 or matched & set(files) else matched.pop()


def _steps(address: str) -> tuple[str, list[str]]:
    """Scheme and host, and the names of folders and file."""
    head = _HEAD.match(address)
    assert head is not None, "it matches nothing, too"
    return head[0], [name for name in address[head.end():].split("/") if name]


def is_pattern(address: str) -> bool:
    """Whether Spark's readers take an address for a pattern."""
    return bool(_SPECIAL.search(address))


def require_readable(name: str, file: Path) -> None:
    """Check that Spark reads a local file.

    Args:
        name: The source's name, for the error.
        file: The file.
    Raises:
        SourceError: Spark skips files of such names, or fails on them.
    """
    require_utf8(name, file)
    if ":" in file.name:
        raise SourceError(f"source {name}: Spark cannot open {file}, since its name holds a colon; rename the file.")
    if skipped_by_spark(file.name):
        raise SourceError(f"source {name}: Spark skips {file}, like all names that begin with _ or a dot, or end in ._COPYING_; "
                          "rename the file.")


def require_utf8(name: str, file: Path) -> None:
    """Check that Spark can be told a path; Python holds bytes that are no text as surrogates.

    Args:
        name: The source's name, for the error.
        file: The file.
    Raises:
        SourceError: it is not UTF-8.
    """
    if any("\udc80" <= sign <= "\udcff" for sign in str(file)):
        raise SourceError(f"source {name}: Spark cannot open {str(file)!r}, since this is not UTF-8; rename the file or folder.")


def skipped_by_spark(name: str) -> bool:
    """Whether Spark passes over files and folders of a name; it reads ``_day=1``, a folder that holds a value of the column ``_day``.

    Source: Spark 4, ``HadoopFSUtils.shouldFilterOutPathName``.
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
