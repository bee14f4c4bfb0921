"""Markdown of a study's page: wrapped paragraphs, and tables. Knows nothing of studies."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

COLUMNS = 120


def prose(*sentences: str) -> str:
    """One paragraph of sentences, wrapped."""
    words = " ".join(" ".join(sentences).split())
    return textwrap.fill(words, COLUMNS, break_long_words=False, break_on_hyphens=False)


def points(*items: str) -> str:
    """A list of items, each wrapped."""
    return "\n".join(textwrap.fill(" ".join(item.split()), COLUMNS, initial_indent="- ", subsequent_indent="  ", break_long_words=False,
                                   break_on_hyphens=False) for item in items)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """A table of rows that all have the same columns."""
    lines = [" | ".join(map(str, cells)) for cells in (rows[0], *(row.values() for row in rows))]
    head, *body = [f"| {line} |" for line in lines]
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
