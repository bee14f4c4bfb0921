"""The page of retrainings: what it says of sample nights, what is missing, and that nothing in it can do harm."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparkring.cli.app import app
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.report import report
from sparkring.spark_jobs.reporting.retraining.charts import retraining_pictures
from sparkring.spark_jobs.reporting.retraining.facts import headline, tiles
from sparkring.spark_jobs.reporting.retraining.gather import gather
from sparkring.spark_jobs.retrain import _Night
from sparkring.spark_jobs.retraining.history import History
from sparkring.spark_jobs.spark.progress import SilentProgress
from tests.support import seams
from tests.support.configs import write
from tests.support.report_samples import sample_config
from tests.support.retraining_samples import write_nights

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)>'\"{{ 7 * 7 }}"


def _page(config: Config) -> str:
    return Path(report(config, retraining=True).path).read_text(encoding="utf-8")


def _text(page: str) -> str:
    """What a reader reads."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<style>.*?</style>", " ", page))).split())


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return write_nights(tmp_path_factory.mktemp("nights"), 10, unfinished=True)


@pytest.fixture(scope="module")
def page(config: Config) -> str:
    return _page(config)


def test_the_top_says_how_many_there_were_and_who_is_champion(config: Config) -> None:
    facts = gather(config)
    assert headline(facts) == (
        "10 retrainings, of which 7 made a new champion. Model version 10 is the champion, promoted on 2026-03-16; it was trained on "
        "dataset version 10. The last candidate, model version 10, was promoted: not worse by more than 1% of the champion's loss.")
    assert [(tile.label, tile.value) for tile in tiles(facts)] == [
        ("champion", "version 10"), ("last ROC AUC", "0.7312"), ("last gain", "+0.0065"), ("largest drift", "0.218"),
        ("last retraining", "17\u00a0min 0\u00a0s")]


def test_each_retraining_has_its_figures_its_triggers_its_rows_and_its_drift(page: str) -> None:
    text = _text(page)
    assert ("8 2026-03-02 03:15 promoted 0.7415 0.7441 +0.0013 -0.0017 to +0.0043 6,596 new rows (trigger: 5,000); temp has drifted: "
            "stability index 0.412 (trigger: 0.25). Not worse by more than 1% of the champion's loss.") in text
    assert "1 2026-01-12 03:08 promoted \u2013 0.7415 \u2013 No retraining yet. There was no champion." in text
    assert "10 10 384,000 51,631 2026-01-18 22:59 2026-02-15 22:59 2026-03-15 22:59 10 v10-00013556 17 min 0 s" in text
    assert "7 2026-02-23 dep_delay_prev 0.263, distance 0.198, temp 0.112" in text
    assert "3 2026-01-26 dep_delay_prev 0.056" in text  # nothing has drifted, so the first is named


def test_changes_by_hand_and_a_retraining_that_has_not_ended_are_there(page: str) -> None:
    text = _text(page)
    assert re.search(r"version 5 rolled back 5 too many false alarms at Newark", text)
    assert "Retraining 11 was begun on 2026-03-23 03:00 UTC on dataset version 11" in text
    for name in ("quality", "gains", "drift"):
        assert f'aria-labelledby="{name}-title"' in page
    assert "3 of 9 candidates better beyond chance, 3 worse." in text


def test_it_needs_nothing_from_outside_and_says_nothing_of_the_template(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", page)
    assert "<script" not in page
    assert "{{" not in page


def test_text_from_documents_cannot_get_out_of_its_place(tmp_path: Path) -> None:
    config = write_nights(tmp_path, 3)
    store = open_store(f"{config.workspace}/models")
    change = store.read("aliases/6.json").replace(b'"reason":"', b'"reason":"' + HOSTILE.replace('"', '\\"').encode(), 1)
    store.put("aliases/6.json", change)
    page = _page(config)
    assert "<script" not in page
    assert "<img" not in page
    assert HOSTILE in html.unescape(page)


def test_without_any_retraining_the_page_names_the_command(tmp_path: Path) -> None:
    text = _text(_page(sample_config(tmp_path)))
    assert "No retraining has ended here yet." in text
    assert "Nothing to compare yet. Run sparkring retrain with this config." in text


def test_a_page_that_cannot_be_written_is_a_note_for_the_decision_stands(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    class Notes(SilentProgress):
        def note(self, text: str) -> None:
            noted.append(text)

    def fails(_: Config) -> None:
        raise ValueError("a bug in a chart")

    noted = list[str]()
    monkeypatch.setattr(seams.RETRAIN_WRITE_RETRAININGS, fails)
    _Night(config, History(config.workspace), None, Notes(), StopRequest(), 0.0)._report()
    assert noted == ["retrain: the report was not written; `sparkring report --retraining` writes it. The reason: a bug in a chart"]


def test_a_single_retraining_is_no_course_of_time(tmp_path: Path) -> None:
    config = write_nights(tmp_path, 1)
    assert retraining_pictures(gather(config)) == ()
    assert "No retraining yet. There was no champion." in _text(_page(config))


def test_a_split_that_does_not_roll_stands_at_the_end_of_each_retraining(tmp_path: Path) -> None:
    page = _page(write_nights(tmp_path, 3, rolling=False))
    assert "end of the retraining" in page
    assert "Newest row" not in page


def test_a_damaged_document_leaves_a_gap_that_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    config = write_nights(tmp_path, 3)
    open_store(f"{config.workspace}/retrain").put("begun/2.json", b"{")
    result = report(config, retraining=True)
    (gap,) = result.absent
    assert "begun/2.json" in gap
    text = _text(Path(result.path).read_text(encoding="utf-8"))
    assert gap.split(";")[0] in text
    assert "3 retrainings, of which 2 made a new champion." in text


def test_an_outcome_of_before_drift_was_kept_is_still_read(tmp_path: Path) -> None:
    config = write_nights(tmp_path, 2)
    store = open_store(f"{config.workspace}/retrain")
    store.put("ended/2.json", re.sub(rb'"drift":\{.*?\},', b"", store.read("ended/2.json")))
    facts = gather(config)
    assert ([each.ended.number for each in facts.over], facts.with_drift, facts.gaps) == ([1, 2], (), ())


def test_the_command_writes_it_and_refuses_the_picture_of_a_step(config: Config, tmp_path: Path) -> None:
    mine = write(tmp_path, "mine.yaml", config.model_dump(mode="json", exclude_unset=True))
    done = CliRunner().invoke(app, ["report", mine, "--retraining"])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == f"report at {config.workspace}/retrain/report.html"
    with pytest.raises(ConfigError, match="leave out --step or --retraining"):
        report(config, retraining=True, step_file=tmp_path / "step.svg")
