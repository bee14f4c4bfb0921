"""``sparkring.show``: which run is meant, what is shown of it, and that the page is shut off from the notebook."""

from __future__ import annotations

import html
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sparkring
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.spark_jobs.report import report
from sparkring.spark_jobs.train import TrainResult
from tests.support import seams
from tests.support.report_samples import sample_config, write_workspace

Shown = list[tuple[str, str]]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return write_workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What a notebook displays: pairs of HTML and text."""
    shown: Shown = []
    monkeypatch.setattr(seams.SHOW_IN_NOTEBOOK, lambda: True)
    monkeypatch.setattr(seams.SHOW_DISPLAY, lambda page, text: shown.append((page, text)))
    return shown


def result_of(config: Config) -> TrainResult:
    return TrainResult(run="first", url=config.run_url, reused=False, resumed_at=0, epochs=1, steps=1, validation={}, seconds=1.0)


def test_a_run_is_found_by_its_result_its_folder_and_its_config(config: Config, notebook: Shown) -> None:
    report_result, fitted = report(config), SimpleNamespace(run_url=config.run_url)
    for what in (result_of(config), config.run_url, Path(config.run_url), f"{config.run_url}/", report_result, fitted, config):
        sparkring.show(what)
    assert len({text.partition(": ")[2] for _, text in notebook}) == 1, "the same facts, under the name of the run or of the config"
    assert [text.partition(": ")[0] for _, text in notebook] == ["first"] * 6 + ["flights"]


def test_the_page_is_whole_and_in_a_frame_that_runs_nothing(config: Config, notebook: Shown) -> None:
    sparkring.show(config, height_px=321)
    ((frame, text),) = notebook
    assert frame.startswith("<iframe srcdoc=")
    assert frame.count("<") == 2, "all of the page is escaped"
    assert 'sandbox=""' in frame
    assert "height: 321px" in frame
    page = html.unescape(frame.partition('srcdoc="')[2].partition('" sandbox=')[0])
    assert page.rstrip().endswith("</html>")
    assert "<svg" in page
    assert '<a href="#' not in page, "a link into the page would be looked for in the notebook"
    assert "held-out ROC AUC" in text


def test_in_a_notebook_nothing_is_written(notebook: Shown, tmp_path: Path) -> None:
    fresh = write_workspace(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    sparkring.show(fresh)
    assert notebook
    assert sorted(tmp_path.rglob("*")) == before


def test_elsewhere_the_figures_are_printed_and_the_page_is_written(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    sparkring.show(config.run_url)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("first: ")
    assert max(map(len, lines[:-1])) <= 100
    page = Path(lines[-1].removeprefix("report: "))
    assert page == Path(config.run_url) / "report.html"
    assert 'href="#quality"' in page.read_text(encoding="utf-8"), "a page of its own has its links"


def test_a_workspace_without_a_run_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sparkring.show(sample_config(tmp_path, run=None))
    assert "training run: not made yet; run `sparkring train`" in capsys.readouterr().out


@pytest.mark.parametrize(("what", "keys", "words"), [
    pytest.param("WORKSPACE/runs/second", {}, "second is no run's folder", id="no run of that name"),
    pytest.param("CONFIG", {"run": "second"}, "holds no run second", id="a config's run that is not there"),
    pytest.param("RESULT", {"run": "second"}, "got run beside the run", id="keys beside a run"),
    pytest.param(7, {}, "got a int, which does not say which run", id="a number"),
    pytest.param("no-such-config", {}, "no config named no-such-config", id="neither a run nor a config")])
def test_what_cannot_be_shown_is_refused_in_a_sentence(what: Any, keys: dict[str, Any], words: str, config: Config) -> None:
    given: Any = {"CONFIG": config, "RESULT": result_of(config), "WORKSPACE/runs/second": f"{config.runs}/second"}.get(what, what)
    with pytest.raises(ConfigError, match=words):
        sparkring.show(given, **keys)
