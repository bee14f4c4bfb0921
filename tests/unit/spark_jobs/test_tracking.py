"""Tracking without a server: which values a run's records are, once each, and what a config may say."""

from __future__ import annotations

import itertools
import math
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import TrackingConfig
from sparkring.errors import ConfigError, DocumentDamaged, EnvironmentProblem, StorageError, TrackingFailed
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.events.writer import EventWriter, event_files
from sparkring.spark_jobs.tracking.readings import Reading, Readings
from sparkring.spark_jobs.tracking.sender import Sender
from sparkring.spark_jobs.tracking.server import SETTINGS, address, reason, settings
from sparkring.spark_jobs.tracking.state import DOCUMENT, Sent, read_sent, without_login, write_sent
from sparkring.spark_jobs.tracking.track import track
from tests.support import seams
from tests.support.configs import MINIMAL

START = {"event": "start", "steps_per_epoch": 3, "generation": 0}


def _step(epoch: int, step: int, **values: Any) -> dict[str, Any]:
    return {"event": "step", "epoch": epoch, "step": step, "time": 1.5, "loss": 0.5, "lr": 0.1, "global_rows": 60, "data_s": 0.5,
            "compute_s": 1.0, "comm_s": 0.5, **values}


def test_a_step_is_its_loss_rate_and_rows_a_second_at_the_steps_done_since_the_run_began() -> None:
    readings = Readings()
    assert readings.of(START) == []
    assert readings.of(_step(1, 0)) == [Reading("train/loss", 0.5, 4, 1500), Reading("train/learning_rate", 0.1, 4, 1500),
                                        Reading("train/rows_per_s", 30.0, 4, 1500)]
    assert math.isnan(readings.of(_step(1, 1, loss=None))[0].value)
    assert [each.key for each in readings.of(_step(1, 2, data_s=0, compute_s=0, comm_s=0))] == ["train/loss", "train/learning_rate"]


def test_steps_and_epochs_that_are_repeated_or_were_sent_are_left_out() -> None:
    readings = Readings(steps=2)
    epoch = {"event": "epoch", "epoch": 0, "time": 2.0, "train_loss": 0.4, "seconds": 3.0, "validation": {"auc": 0.7}}
    records = [START, _step(0, 0), _step(0, 1), _step(0, 2), epoch, _step(1, 0), START | {"generation": 1}, _step(0, 2), epoch, _step(1, 0),
               _step(1, 1), {"event": "end", "time": 3.0}]
    found = [each for record in records for each in readings.of(record)]
    assert [each.step for each in found if each.key == "train/loss"] == [3, 4, 5]
    assert [(each.key, each.step) for each in found if each.key.startswith(("epoch", "validation"))] == [
        ("epoch/train_loss", 3), ("epoch/seconds", 3), ("validation/auc", 3)]
    assert (readings.steps, readings.epochs) == (5, 1)


class _Taking:
    """A server that takes all readings."""

    def __init__(self) -> None:
        self.taken: list[Reading] = []

    def log(self, run_id: str, readings: list[Reading]) -> None:
        self.taken += readings


def test_steps_that_were_read_before_storage_went_away_are_sent_once_it_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "http://mlflow:5000"
    config, server, looks = parse_config({**MINIMAL, "tracking": {"mlflow_uri": uri}}, origin="test"), _Taking(), itertools.count(1)
    write_sent(open_store(str(tmp_path)), Sent(uri=uri, experiment=config.name, key="k", mlflow_run_id="r", generation=0))
    with EventWriter(str(tmp_path), generation=0, rank=0) as events:
        events.write("start", steps_per_epoch=3)
        for step in range(3):
            events.write(**_step(0, step))

    def away_at_the_second_look(url: str) -> list[str]:
        if next(looks) == 2:
            raise StorageError("503")
        return event_files(url)

    monkeypatch.setattr(seams.TRACKING_EVENT_FILES, away_at_the_second_look)
    monkeypatch.setattr(seams.TRACKING_SERVER, lambda _: server)
    assert config.tracking is not None
    sender = Sender(config, config.tracking, run_url=str(tmp_path))
    with pytest.raises(StorageError):
        sender.send()
    sender.send()
    assert [each.step for each in server.taken if each.key == "train/loss"] == [1, 2, 3]


def test_what_was_sent_belongs_to_one_server_and_experiment_and_holds_no_login(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    mine = read_sent(store, uri="http://ann:secret@mlflow:5000", experiment="flights")
    write_sent(store, mine.model_copy(update={"steps": 7}))
    assert "secret" not in (tmp_path / DOCUMENT).read_text()
    assert without_login("http://me:pa@ss@host:5000/a@b") == "http://host:5000/a@b"
    assert read_sent(store, uri="http://bob:other@mlflow:5000", experiment="flights").steps == 7
    assert read_sent(store, uri="http://elsewhere:5000", experiment="flights").steps == 0
    assert read_sent(store, uri="http://mlflow:5000", experiment="cars").steps == 0
    (tmp_path / DOCUMENT).write_text("{")
    with pytest.raises(DocumentDamaged, match="delete it to send the run anew"):
        read_sent(store, uri="http://mlflow:5000", experiment="flights")


@pytest.mark.parametrize(("error", "expected"), [
    pytest.param(RuntimeError("Max retries exceeded (Caused by ResponseError('too many 503 error responses'))"), "answered 503", id="503"),
    pytest.param(RuntimeError("API request failed with error code 500 != 200. Response body: ''"), "answered 500", id="500"),
    pytest.param(ConnectionRefusedError("no"), "does not answer", id="nobody there"),
    pytest.param(TimeoutError("read timed out"), "did not answer in time", id="silence"),
    pytest.param(ValueError("Invalid name;  use\nothers."), "refused: Invalid name, use others", id="anything else"),
    pytest.param(ValueError(), "refused: ValueError", id="without a word"),
])
def test_why_a_request_failed_is_the_end_of_one_sentence(error: Exception, expected: str) -> None:
    assert reason(error) == expected


def test_mlflow_s_settings_are_ours_only_for_a_while_and_never_against_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "7")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere:5000")
    before = dict(os.environ)
    with settings(TrackingConfig(mlflow_uri="http://mlflow:5000")):
        assert os.environ["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
        assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "7"
    assert dict(os.environ) == before
    with settings(TrackingConfig()):
        assert os.environ["MLFLOW_TRACKING_URI"] == "http://elsewhere:5000"


def test_runs_at_once_share_mlflow_s_settings_until_the_last_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SETTINGS, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    before, one, other = dict(os.environ), settings(TrackingConfig(mlflow_uri="http://mlflow:5000")), ExitStack()
    with one:
        other.enter_context(settings(TrackingConfig(mlflow_uri="http://mlflow:5000")))
    assert os.environ.items() >= {**SETTINGS, "MLFLOW_TRACKING_URI": "http://mlflow:5000"}.items()
    other.close()
    assert dict(os.environ) == before


def test_a_run_for_another_server_waits_and_takes_no_address_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:secret@theirs:5000")
    ours = TrackingConfig(mlflow_uri="http://mlflow:5000")
    with settings(ours):
        assert address(TrackingConfig()) == "http://ann:secret@theirs:5000"
        with pytest.raises(TrackingFailed, match=r"http://theirs:5000 has to wait: .* to http://mlflow:5000, .*run `sparkring track`"), \
                settings(TrackingConfig()):
            pass
    with settings(TrackingConfig()), pytest.raises(TrackingFailed, match="to http://theirs:5000, and sends to one server"), settings(ours):
        pass
    with settings(ours):
        assert os.environ["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_a_config_holds_no_password_of_mlflow() -> None:
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as raised:
        parse_config({**MINIMAL, "tracking": {"mlflow_uri": "https://ann:secret@mlflow"}}, origin="test")
    assert "secret" not in str(raised.value)


def test_without_the_section_a_run_or_the_library_track_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {**MINIMAL, "workspace": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"has no section tracking; add it, or give --set tracking\.mlflow_uri="):
        track(parse_config(values, origin="test"))
    config = parse_config({**values, "tracking": {"mlflow_uri": "http://127.0.0.1:9"}}, origin="test")
    monkeypatch.setattr(seams.TRACKING_FIND_SPEC, lambda _: "found")
    with pytest.raises(ConfigError, match="holds no run yet; run `sparkring train`"):
        track(config)
    monkeypatch.setattr(seams.TRACKING_FIND_SPEC, lambda _: None)
    with pytest.raises(EnvironmentProblem, match=r"tracking needs mlflow, which is not installed; .*'sparkring\[mlflow\]'"):
        track(config)
