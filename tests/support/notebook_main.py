"""Run a notebook by nbclient and write it with its outputs: ``notebook_main.py NOTEBOOK.py RUN.ipynb [INTERRUPT-AT]``."""

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
    """Interrupts the kernel once, when a cell displays a text in which a pattern is found."""

    pattern = ""
    _interrupting: asyncio.Future[Any] | None = None

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        text = msg["content"].get("data", {}).get("text/plain", "") if isinstance(msg["content"].get("data"), dict) else ""
        if self.pattern and self._interrupting is None and re.search(self.pattern, text):
            self._interrupting = asyncio.ensure_future(self.km.interrupt_kernel())
        return super().process_message(msg, cell, cell_index)


def main(notebook: str, written: str, interrupt_at: str = "") -> None:
    document = jupytext.read(notebook)
    document.metadata["kernelspec"] = {"name": "python3", "display_name": "Python", "language": "python"}
    client = InterruptingClient(document, timeout=None, kernel_name="python3", allow_errors=True)
    client.pattern = interrupt_at
    client.execute()
    nbformat.write(document, Path(written))


if __name__ == "__main__":
    main(*sys.argv[1:])
