"""The report's colours: one for each meaning, in a light and a dark shade, distinct to colour-blind readers too.

Charts are drawn in the light shades; ``svg.py`` turns each into a CSS variable, so one picture serves both themes.
Source of the hues: Okabe and Ito, "Color Universal Design", 2008.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shade:
    """One meaning's colour. The light shades must differ from each other: ``svg.py`` finds the meaning by them."""

    variable: str
    """CSS variable, without the dashes."""
    light: str
    dark: str


INK = Shade("ink", "#1c2430", "#e8edf3")
MUTED = Shade("muted", "#5a6675", "#9fadbd")
GRID = Shade("grid", "#dfe4ea", "#2e3947")

PAPER = Shade("paper", "#ffffff", "#12171e")
"""The page."""

NETWORK = Shade("network", "#0072b2", "#5cb8f0")
LOGISTIC = Shade("logistic", "#d55e00", "#ff9457")
BASE_RATE = Shade("base-rate", "#7b8593", "#8f9cab")

TRAIN = NETWORK
VALIDATION = LOGISTIC

DATA = Shade("data", "#e69f00", "#f2b63c")
COMPUTE = Shade("compute", "#0073b3", "#4aa8e0")
COMM = Shade("comm", "#b0578d", "#db8dbd")
OTHER = Shade("other", "#c3cad3", "#55616f")

FORWARD = Shade("forward", "#0072b1", "#6bbdf0")
BACKWARD = Shade("backward", "#c04a00", "#ff9f66")
INPUT_GRADIENT = Shade("input-gradient", "#9a6700", "#f0bb4e")
WEIGHT_GRADIENT = Shade("weight-gradient", "#00765a", "#4fd3ac")
ON_FILL = Shade("on-fill", "#fffffe", "#10151c")
"""Text on a filled cell of one of these four."""

SHADES = (INK, MUTED, GRID, NETWORK, LOGISTIC, BASE_RATE, DATA, COMPUTE, COMM, OTHER, FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT,
          ON_FILL)
