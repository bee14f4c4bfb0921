"""What a drawn figure looks like inside a page."""

from __future__ import annotations

import re

import matplotlib as mpl
import pytest
from markupsafe import Markup
from matplotlib.figure import Figure

from sparkring.conf.schema.search import SearchedKey
from sparkring.spark_jobs.explaining.documents import Importance, Rise
from sparkring.spark_jobs.reporting.charts.canvas import draw
from sparkring.spark_jobs.reporting.charts.importance import importance_picture
from sparkring.spark_jobs.reporting.charts.palette import NETWORK, SHADES
from sparkring.spark_jobs.searching.charts import search_pictures
from sparkring.spark_jobs.searching.trials import Trial


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


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize(("name", "drawn"), [
    pytest.param("price_$_$", "price_$_$", id="two signs"), pytest.param("$$", "$$", id="signs alone"),
    pytest.param("$x_1_2$", "$x_1_2$", id="no mathematics"), pytest.param("a$b$c", "a$b$c", id="mathematics"),
    pytest.param("a\x01b\ufffe", "ab", id="characters that no XML holds")])
def test_a_name_from_the_data_is_drawn_as_it_is(name: str, drawn: str) -> None:
    features = (Rise(feature=name, rise=0.2, low=0.1, high=0.3),)
    svg = importance_picture(Importance(rows=10, loss=0.5, features=features)).svg
    assert f">{drawn}</text>" in svg
    assert f"the first: {drawn} +0.2." in svg


def test_a_logarithmic_axis_of_a_search_has_plain_figures() -> None:
    trials = [Trial(number=number, params={"train.optimizer.lr": lr}, epochs=(0.5,), value=0.5) for number, lr in enumerate((0.001, 0.1))]
    *_, against = search_pictures(trials, trials[0], name="loss", space={"train.optimizer.lr": SearchedKey(low=0.001, high=0.1, log=True)})
    assert ">1e\u221202</text>" in against.svg
    assert "$" not in against.svg


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert picture() == picture()


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    before = dict(mpl.rcParams)
    picture()
    assert dict(mpl.rcParams) == before
