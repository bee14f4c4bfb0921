"""What a drawn figure looks like inside a page."""

from __future__ import annotations

import re

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from sparkring.spark_jobs.reporting.charts.canvas import draw
from sparkring.spark_jobs.reporting.charts.palette import NETWORK, SHADES


def picture(name: str = "one", label: str = "a line") -> Markup:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot([1, 2, 3], [1, 4, 2], color=NETWORK.light, marker="o")
        axes.fill_between([1, 2], [0, 0], [1, 1], color=NETWORK.light, alpha=0.3)
        axes.set_title("cost <b> & 'more'", parse_math=False)

    return draw(paint, name=name, label=label)


def test_a_picture_names_no_outside_resource() -> None:
    assert "http" not in picture()
    assert "xmlns" not in picture()
    assert "<style" not in picture()


def test_every_reference_leads_to_an_id_of_the_same_picture() -> None:
    svg = picture()
    ids = re.findall(r' id="([^"]+)"', svg)
    referenced = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
    assert {plain or url for plain, url in referenced} == set(ids)
    assert len(ids) == len(set(ids)) > 0
    assert all(name.startswith("one-") for name in ids)


def test_two_pictures_of_the_same_figure_share_no_id() -> None:
    ids = [set(re.findall(r' id="([^"]+)"', picture(name))) for name in ("one", "two")]
    assert not ids[0] & ids[1]


def test_colours_are_variables_so_that_both_themes_fit() -> None:
    svg = picture()
    assert "stroke:var(--network)" in svg
    assert not re.search("#[0-9a-f]{6}", svg)


def test_no_two_meanings_share_a_light_shade() -> None:
    assert len({shade.light for shade in SHADES}) == len(SHADES)


def test_text_stays_text_and_is_escaped() -> None:
    assert "cost &lt;b&gt; &amp; 'more'" in picture()
    assert 'aria-label="&lt;i&gt;&quot;"' in picture(label='<i>"')


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert picture() == picture()


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    before = dict(mpl.rcParams)
    picture()
    assert dict(mpl.rcParams) == before
