"""Whether this is a notebook, and what it displays. IPython is used where it runs already, and never asked for."""

from __future__ import annotations

import sys
from typing import Any


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; an IPython in a terminal is none."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


class Block:
    """A piece of the cell's output that can be replaced: HTML, and the same as text for front ends that show no HTML."""

    def __init__(self, html: str, text: str) -> None:
        """Display it below what the cell has displayed."""
        self._handle: Any = _display(html, text, display_id=True)

    def replace(self, html: str, text: str) -> None:
        """Show this in its place."""
        self._handle.update(_bundle(html, text), raw=True)


def display(html: str, text: str) -> None:
    """Display something once."""
    _display(html, text, display_id=None)


def _display(html: str, text: str, *, display_id: bool | None) -> Any:
    from IPython import display as ipython

    return ipython.display(_bundle(html, text), raw=True, display_id=display_id)


def _bundle(html: str, text: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": text}
