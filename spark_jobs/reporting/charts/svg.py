"""Turn a matplotlib figure into SVG for an HTML page: no outside reference, two themes, the same bytes each time.

Matplotlib writes a whole document: a DOCTYPE and namespaces that name a host, a style sheet that would apply to the whole page,
ids that repeat between pictures, named fonts, fixed colours. This module corrects them on the parsed tree, never on the text.
"""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree as ET

from markupsafe import Markup
from matplotlib.figure import Figure

from sparkring.spark_jobs.reporting.charts.palette import PAPER, SHADES

_VARIABLES = {shade.light: f"var(--{shade.variable})" for shade in SHADES}
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"^#(\S+)$|url\(#([^)]+)\)")
_HASH = re.compile(r"^#(?=\S+$)|(?<=url\()#")
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML may hold, even escaped. Source: https://www.w3.org/TR/xml/#charsets."""
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def inline_svg(figure: Figure, *, name: str, label: str, wide: bool = False) -> Markup:
    """Render ``figure`` as one ``<svg>`` element.

    Args:
        figure: Drawn under ``svg.fonttype: none`` and a fixed ``svg.hashsalt``.
        name: Prefix of the ids inside; unique within a page.
        label: A description for readers who cannot see the picture.
        wide: Whether the picture spans the page.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=_NO_METADATA)
    root = ET.fromstring(_NOT_IN_XML.sub("", text.getvalue()))  # noqa: S314 - matplotlib's own output
    _drop_style_sheets(root)
    for element in root.iter():
        element.tag = _bare(element.tag)
        element.attrib = {_bare(key): value for key, value in element.attrib.items()}
    referenced = {plain or url for element in root.iter() for value in element.attrib.values() for plain, url in _REFERENCE.findall(value)}
    for element in root.iter():
        _adapt(element, name, referenced)
    box = root.attrib["viewBox"]
    root.attrib = {"class": "chart wide" if wide else "chart", "viewBox": box, "role": "img", "aria-label": _NOT_IN_XML.sub("", label)}
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704 - a serialised tree is escaped


def as_file(svg: Markup) -> str:
    """An inline picture as a file, for a README, with both themes; the reader's system chooses."""
    def theme(name: str) -> str:
        return "".join(f"--{shade.variable}:{getattr(shade, name)};" for shade in SHADES if f"--{shade.variable})" in svg)

    style = (f"<style>.chart{{{theme('light')}background:{PAPER.light};font-family:system-ui,'Segoe UI','DejaVu Sans',sans-serif}}"
             f"@media (prefers-color-scheme:dark){{.chart{{{theme('dark')}background:{PAPER.dark}}}}}</style>")
    opening, rest = svg.split(">", 1)
    return f'{opening} xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">{style}{rest}\n'


def _bare(name: str) -> str:
    """A tag or attribute without its namespace, which HTML does not need."""
    return name.rpartition("}")[2]


def _drop_style_sheets(root: ET.Element) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            if _bare(child.tag) == "style":
                parent.remove(child)


def _adapt(element: ET.Element, name: str, referenced: set[str]) -> None:
    """Keep only ids that something points at, under the page's own names; shorten numbers; colours by variable."""
    if element.attrib.get("id") not in referenced:
        element.attrib.pop("id", None)
    for key, value in element.attrib.items():
        if key == "id":
            element.attrib[key] = f"{name}-{value}"
        elif key == "style":
            element.attrib[key] = _themed(value)
        else:
            element.attrib[key] = _LONG_NUMBER.sub(lambda match: f"{float(match.group()):.2f}", _HASH.sub(f"#{name}-", value))
    if element.text:
        element.text = element.text.strip("\n ") or None
    element.tail = None


def _themed(style: str) -> str:
    """Colours as variables; the page's own font instead of a list of names."""
    declarations = (declaration.partition(":") for declaration in style.split(";"))
    kept = [(key.strip(), value.strip()) for key, _, value in declarations if key.strip() != "font-family"]
    return ";".join(f"{key}:{_VARIABLES.get(value, value)}" for key, value in kept if key)
