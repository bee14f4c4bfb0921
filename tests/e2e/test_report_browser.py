"""The report in a real browser: nothing broken, nothing loaded, legible at every width and in both themes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray

from sparkring.spark_jobs.report import report
from tests.support.report_browser import Browser, find_browser
from tests.support.report_samples import sample_config, write_workspace
from tests.support.retraining_samples import write_nights

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no chromium here; apt-get install chromium")

PHONE, PAPER, TABLET, DESKTOP = 375, 720, 768, 1280

OVERHANG = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, svg, .skip')
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
PICTURES = """[...document.querySelectorAll('figure')].map(f => ({name: f.getAttribute('aria-labelledby'),
  width: f.querySelector('svg').getBoundingClientRect().width, height: f.querySelector('svg').getBoundingClientRect().height,
  shapes: f.querySelectorAll('svg path').length, texts: f.querySelectorAll('svg text').length}))"""
SMALLEST_TEXT = """Math.min(...[...document.querySelectorAll('svg text')].map(t =>
  parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getBoundingClientRect().width / t.ownerSVGElement.viewBox.baseVal.width))"""
COLLISIONS = """[...document.querySelectorAll('svg')].flatMap(s => {
  const texts = [...s.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return texts.flatMap(([a, p], i) => texts.slice(i + 1).filter(([b, q]) =>
    p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 4 && q.top < p.bottom - 4).map(([b]) => a + ' / ' + b)); })"""
CONTRASTS = """(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  return [...document.querySelectorAll('h1, h2, h3, p, a, dt, dd, th, td, figcaption, li, code, svg text')].map(e => {
    const style = getComputedStyle(e), a = light(rgb(e.tagName === 'text' ? style.fill : style.color)), b = light(behind(e));
    return [e.tagName + ' ' + e.textContent.trim().slice(0, 30), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]; });
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with Browser(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Path(report(write_workspace(tmp_path_factory.mktemp("workspace"), killed_at=500)).path).as_uri()


@pytest.fixture(scope="module")
def staged_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Path(report(write_workspace(tmp_path_factory.mktemp("staged"), epochs=1, steps=20, ranks=3, staged=True)).path).as_uri()


@pytest.fixture(scope="module")
def retraining_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Path(report(write_nights(tmp_path_factory.mktemp("nights"), 10, unfinished=True), retraining=True).path).as_uri()


def pixels(png: bytes) -> NDArray[np.float32]:
    image: NDArray[np.float32] = imread(io.BytesIO(png))
    return image[..., :3]


def of_kind(browser: Browser, *methods: str) -> list[dict[str, Any]]:
    return [event["params"] for event in browser.events if event["method"] in methods]


def test_the_page_loads_without_a_complaint_and_asks_for_no_other_file(browser: Browser, page: str) -> None:
    browser.open(page, width=DESKTOP)
    assert of_kind(browser, "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed") == []
    requested = {event["request"]["url"] for event in of_kind(browser, "Network.requestWillBeSent")}
    assert page in requested
    assert {url for url in requested if not url.startswith("data:,")} == {page}
    assert browser.ask("document.compatMode") == "CSS1Compat"


def test_scripts_cannot_run_in_the_page_even_if_one_got_in(browser: Browser, tmp_path: Path) -> None:
    """A control of the page's own policy: here a script did get in."""
    path = Path(report(sample_config(tmp_path)).path)
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", "<script>window.ran = 1</script></body>"), encoding="utf-8")
    browser.open(path.as_uri(), width=DESKTOP)
    assert browser.ask("window.ran") is None
    assert len(of_kind(browser, "Log.entryAdded")) == 1  # so complaints do reach the test above


@pytest.mark.parametrize("width", [PHONE, TABLET, DESKTOP])
def test_it_fits_the_window_and_every_picture_is_drawn_large_enough_to_read(browser: Browser, page: str, width: int) -> None:
    browser.open(page, width=width)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(OVERHANG) == []
    pictures = browser.ask(PICTURES)
    assert len(pictures) == 8
    for picture in pictures:
        assert picture["width"] > 250, picture
        assert picture["height"] > 100, picture
        assert picture["shapes"] > 4, picture
        assert picture["texts"] > 4, picture
    assert browser.ask(SMALLEST_TEXT) > 9
    assert browser.ask(COLLISIONS) == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_step_in_stages_is_drawn_over_the_whole_page_and_scrolls_where_that_is_narrow(
        browser: Browser, staged_page: str, width: int) -> None:
    browser.open(staged_page, width=width)
    assert of_kind(browser, "Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed") == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(OVERHANG) == []
    (step,) = [picture for picture in browser.ask(PICTURES) if picture["name"] == "step-title"]
    assert step["width"] >= min(700, 2 * width)
    assert step["texts"] > 2 * 3 * 16  # plan and measurement, three stages, eight passes forward and back
    assert browser.ask(COLLISIONS) == []


def test_the_probes_see_a_page_that_does_not_fit(browser: Browser, page: str) -> None:
    """A control: what the test above would say of a page with a fixed width and crowded labels."""
    browser.open(page, width=PHONE)
    browser.ask("document.body.style.minWidth = '900px'; "
                "document.querySelectorAll('svg text').forEach(t => t.style.setProperty('font-size', '60px', 'important'))")
    assert browser.ask("document.documentElement.scrollWidth") > PHONE
    assert len(browser.ask(OVERHANG)) > 0
    assert len(browser.ask(COLLISIONS)) > 0


@pytest.mark.parametrize(("theme", "dark"), [("light", False), ("dark", True)])
def test_text_stands_out_from_its_background_in_both_themes(browser: Browser, page: str, theme: str, dark: bool) -> None:
    browser.open(page, width=DESKTOP, theme=theme)
    faint = [(text, contrast) for text, contrast in browser.ask(CONTRASTS) if contrast < 4.5]  # WCAG 2.1, 1.4.3
    assert faint == []
    image = pixels(browser.photograph())
    assert (float(np.median(image)) < 0.3) is dark
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 200  # pictures, not an empty page
    assert image.shape[0] > 3000


@pytest.mark.parametrize(("width", "theme"), [(PHONE, "light"), (DESKTOP, "light"), (DESKTOP, "dark")])
def test_the_page_of_retrainings_fits_and_is_legible_too(browser: Browser, retraining_page: str, width: int, theme: str) -> None:
    browser.open(retraining_page, width=width, theme=theme)
    assert of_kind(browser, "Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed") == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(OVERHANG) == []
    assert [picture["name"] for picture in browser.ask(PICTURES)] == ["quality-title", "gains-title", "drift-title"]
    assert browser.ask(SMALLEST_TEXT) > 9
    assert browser.ask(COLLISIONS) == []
    assert [(text, contrast) for text, contrast in browser.ask(CONTRASTS) if contrast < 4.5] == []


def test_on_paper_pictures_stand_in_pairs_and_the_dark_theme_is_light(browser: Browser, page: str) -> None:
    browser.open(page, width=PAPER, theme="dark", media="print")
    widths = [picture["width"] for picture in browser.ask(PICTURES)]
    assert max(widths) - min(widths) < 1
    assert browser.ask("document.documentElement.scrollWidth") <= PAPER
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_an_empty_workspace_is_a_whole_page_too(browser: Browser, tmp_path: Path) -> None:
    browser.open(Path(report(sample_config(tmp_path)).path).as_uri(), width=PHONE)
    assert of_kind(browser, "Runtime.exceptionThrown", "Log.entryAdded") == []
    assert browser.ask("document.querySelectorAll('.notice').length") == 6
    assert browser.ask("document.documentElement.scrollWidth") <= PHONE
