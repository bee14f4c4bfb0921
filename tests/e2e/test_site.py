"""The site of the documentation: it builds without a broken link, documents every public name, and can be read at every width."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkring
from tests.support.notebooks import find_uv
from tests.support.report_browser import Browser, find_browser

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.skipif(find_uv() is None, reason="no uv here")]
needs_browser = pytest.mark.skipif(find_browser() is None, reason="no chromium here; apt-get install chromium")
PHONE, DESKTOP = 375, 1280
PAGES = ("index.html", "figures.html", "how-to/coming-from.html", "reference/api.html", "reference/config.html", "log/index.html")


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` runs, into another folder."""
    uv = find_uv()
    assert uv is not None
    return subprocess.run([uv, "run", "--quiet", "--frozen", "--only-group", "docs", "mkdocs", "build", "--site-dir", site],
                          cwd=checkout, capture_output=True, text=True, timeout=600, check=False,
                          env=os.environ | {"UV_PROJECT_ENVIRONMENT": str(ROOT / "build/docs-tools"), "NO_MKDOCS_2_WARNING": "1"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def test_every_public_name_is_documented_and_every_error(site: Path) -> None:
    page = (site / "reference/api.html").read_text(encoding="utf-8")
    names = {*sparkring.__all__} - {"__version__"}
    assert [name for name in names if f'id="sparkring.{name}"' not in page] == []
    assert 'id="sparkring.errors.RankDied"' in page


@pytest.mark.parametrize(("page", "text", "words"), [
    ("docs/reference/glossary.md", "\n[x](../how-to/no-such-page.md)\n", "no-such-page.md"),
    ("docs/reference/glossary.md", "\n[x](config.md#no-such-anchor)\n", "no-such-anchor"),
    ("README.md", "\n[x](spark_jobs/no_such_module.py)\n", "no_such_module.py")], ids=["page", "anchor", "source file"])
def test_a_link_that_leads_nowhere_fails_the_build(page: str, text: str, words: str, tmp_path: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True,
                             text=True).stdout.splitlines()
    for name in tracked:
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
    with (tmp_path / page).open("a", encoding="utf-8") as file:
        file.write(text)
    built = build(tmp_path, tmp_path / "build/site")
    assert built.returncode != 0
    assert words in built.stdout + built.stderr


@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_page_fits_the_window_and_asks_nothing_of_other_hosts(browser: Browser, site: Path, width: int, theme: str) -> None:
    for page in PAGES:
        browser.open((site / page).as_uri(), width=width, theme=theme)
        assert browser.ask("document.documentElement.scrollWidth") <= width, page
        assert browser.ask("getComputedStyle(document.body).backgroundColor") != "rgba(0, 0, 0, 0)"
        requested = {event["params"]["request"]["url"] for event in browser.events if event["method"] == "Network.requestWillBeSent"}
        assert [url for url in requested if not url.startswith(("file:", "data:", "blob:"))] == [], page
