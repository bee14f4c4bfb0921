"""Run a notebook by nbclient and write it with its outputs: ``notebook_main.py NOTEBOOK.py RUN.ipynb [INTERRUPT-AT ...]``."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat


class InterruptingClient(nbclient.NotebookClient):  # type: ignore[misc]  # published without types
    """Interrupts the kernel when a cell displays a text in which the next of some patterns is found."""

    patterns: list[str]
    interrupts: list[asyncio.Future[Any]]

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        data = msg["content"].get("data")
        text = data.get("text/plain", "") if isinstance(data, dict) else ""
        if self.patterns and re.search(self.patterns[0], text):
            del self.patterns[0]
            self.interrupts.append(asyncio.ensure_future(self.km.interrupt_kernel()))
        return super().process_message(msg, cell, cell_index)


def main(notebook: str, written: str, *interrupt_at: str) -> None:
    document = jupytext.read(notebook)
    document.metadata["kernelspec"] = {"name": "python3", "display_name": "Python", "language": "python"}
    client = InterruptingClient(document, timeout=None, kernel_name="python3", allow_errors=True)
    client.patterns, client.interrupts = list(interrupt_at), []
    client.execute()
    nbformat.write(document, Path(written))


if __name__ == "__main__":
    main(*sys.argv[1:])
