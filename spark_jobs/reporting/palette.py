"""The report's colours: each meaning has one, in a light and a dark shade, told apart by colour-blind eyes too.

Charts are drawn in the light shades; ``svg.py`` turns each into a CSS variable, so one picture serves both themes.
Source of the hues: Okabe and Ito, "Color Universal Design", 2008.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shade:
    """One meaning's colour. The light shades must differ from each other: they are how ``svg.py`` knows a meaning."""

    variable: str
    """CSS variable, without the dashes."""
    light: str
    dark: str


INK = Shade("ink", "#1c2430", "#e8edf3")
MUTED = Shade("muted", "#5a6675", "#9fadbd")
GRID = Shade("grid", "#dfe4ea", "#2e3947")

NETWORK = Shade("network", "#0072b2", "#5cb8f0")
LOGISTIC = Shade("logistic", "#d55e00", "#ff9457")
BASE_RATE = Shade("base-rate", "#7b8593", "#8f9cab")

TRAIN = NETWORK
VALIDATION = LOGISTIC

DATA = Shade("data", "#e69f00", "#f2b63c")
COMPUTE = Shade("compute", "#0073b3", "#4aa8e0")
COMM = Shade("comm", "#b0578d", "#db8dbd")
OTHER = Shade("other", "#c3cad3", "#55616f")

SHADES = (INK, MUTED, GRID, NETWORK, LOGISTIC, BASE_RATE, DATA, COMPUTE, COMM, OTHER)
