"""How a benchmark ends: a table for people, then one JSON object as the last line for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

Figure = float | int | str | bool


def print_result(rows: Sequence[Mapping[str, object]], fields: Mapping[str, Figure | Mapping[str, Figure] | Sequence[object]]) -> None:
    """Print ``rows`` as a table and ``fields`` as the last line.

    Args:
        rows: One mapping a line, all with the same keys.
        fields: The figures by name, or by two names, or lists, which are printed as they are; floats are rounded to 5 significant
            digits.
    """
    table = Table(*rows[0].keys())
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    print(json.dumps({name: {part: _rounded(one) for part, one in value.items()} if isinstance(value, Mapping) else _rounded(value)
                      for name, value in fields.items()}), flush=True)


def _rounded(value: Figure | Sequence[object]) -> Figure | Sequence[object]:
    return float(f"{value:.5g}") if isinstance(value, float) else value
