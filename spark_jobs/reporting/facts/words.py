"""Format figures and names for people: counts, shares, durations, sizes, times, names in Markdown. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from sparkring.conf.schema import ImageModelConfig, ModelConfig, TabularModelConfig

DASH = "\u2013"


def count(value: float) -> str:
    """``12345`` -> ``12,345``."""
    return f"{value:,.0f}"


def compact(value: float) -> str:
    """For axes: ``1500`` -> ``1.5k``, ``2000000`` -> ``2M``; small figures as they are."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def metric(value: float | None) -> str:
    """A loss or score with four decimals; a dash if there is none."""
    return DASH if value is None or not math.isfinite(value) else f"{value:z.4f}"


def measure(value: float | None) -> str:
    """A quantity of any size in the label's units: ``0.012345`` -> ``0.01235``, ``123456.7`` -> ``123,457``; a dash if there is none."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def share(value: float | None) -> str:
    """``0.2345`` -> ``23.5 %``; a dash if there is none."""
    return DASH if value is None or not math.isfinite(value) else f"{100 * value:.1f}\u00a0%"


def seconds(value: float) -> str:
    """For columns of seconds: ``3.25`` -> ``3.2``, ``1234.5`` -> ``1,234``."""
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def duration(value: float) -> str:
    """``0.0042`` -> ``4.2 ms``, ``75`` -> ``1 min 15 s``, ``7300`` -> ``2 h 2 min``."""
    if not math.isfinite(value):
        return DASH
    if value < 0.9995:
        return f"{1000 * value:.3g}\u00a0ms"
    if value < 60:
        return f"{value:.3g}\u00a0s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}\u00a0h {minutes}\u00a0min" if hours else f"{minutes}\u00a0min {rest}\u00a0s"


def size(num_bytes: float) -> str:
    """``1500000`` -> ``1.5 MB``."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= 0.9995 * unit:
            return f"{num_bytes / unit:.3g}\u00a0{name}"
    return f"{num_bytes:.0f}\u00a0B"


def moment(timestamp: float) -> str:
    """Seconds since 1970 -> ``2013-01-31 12:00 UTC``."""
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M\u00a0UTC")


def cell(text: object) -> str:
    """Text from the data in Markdown: it ends no cell of a table, and no line."""
    return " ".join(str(text).split()).replace("|", "\\|")


def code(name: str) -> str:
    """A name from the data as a code span of Markdown, which shows it as it is and reads no markup in it."""
    return "`" + cell(name).replace("`", "'") + "`"


def layers(model: ModelConfig) -> str:
    """The layers of a network in words, e.g. ``hidden layers 256, 128, 64``."""
    if model.network is not None:
        return model.network + (f" of {', '.join(f'{name} {value}' for name, value in model.options.items())}" if model.options else "")
    if isinstance(model, TabularModelConfig):
        return f"hidden layers {', '.join(map(str, model.hidden))}"
    if isinstance(model, ImageModelConfig):
        return f"residual stages of {', '.join(map(str, model.widths))} channels"
    return f"{several(model.layers, 'layer')} of width {model.width}, {several(model.heads, 'head')} each"


def several(number: int, noun: str) -> str:
    """``1, "rank"`` -> ``1 rank``; ``2, "rank"`` -> ``2 ranks``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
