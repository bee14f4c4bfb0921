"""Tracking against a real MLflow server with a database: each value arrives once, whatever happens on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from harness.datasets import write_dataset
from sparkring.conf.schema import Config, TrackingConfig
from sparkring.errors import CommitConflict, ConfigError, Stopped, TrackingFailed
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.training.events.writer import EventWriter
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.pipelines.training.job.model_files import ModelCard, load_model, save_model
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.spark_jobs.run.folder import RunFolder
from sparkring.spark_jobs.tracking.aliases import TrainedModel, mirror_aliases
from sparkring.spark_jobs.tracking.following import sending, tracked
from sparkring.spark_jobs.tracking.model_folder import write_model_folder
from sparkring.spark_jobs.tracking.pyfunc_model import classes_of
from sparkring.spark_jobs.tracking.track import track
from tests.support.http_faults import HttpFaults
from tests.support.mlflow_server import Notes, client_of, history, mlflow_server
from tests.support.runs import begin_run
from tests.support.tcp import held_ports
from tests.support.training import await_condition, train_config

STEPS_PER_EPOCH = 5


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as address:
        yield address


def _config(folder: Path, uri: str, **tracking: Any) -> Config:
    config = train_config(folder, model={"hidden": [4]}, tracking={"mlflow_uri": uri, "experiment": folder.name, **tracking})
    begin_run(config)
    return config


def _write_generation(config: Config, generation: int, *, first: int, last: int, rank: int = 0) -> None:
    """The records of the steps ``first`` to ``last`` (counted from 0), and of the epochs that end there."""
    with EventWriter(config.run_url, generation=generation, rank=rank) as events:
        events.write("start", size=2, device="cpu", reduction="shared memory", lanes=24, seed=1, batch_rows=100, dataset_url="somewhere",
                     dataset_version=1, content_id="c1", steps_per_epoch=STEPS_PER_EPOCH, epochs=2, epoch=first // STEPS_PER_EPOCH,
                     step=first % STEPS_PER_EPOCH)
        for number in range(first, last + 1):
            epoch, step = divmod(number, STEPS_PER_EPOCH)
            events.write("step", epoch=epoch, step=step, global_rows=100, loss=None if number == 2 else 1 / (1 + number), lr=0.1,
                         data_s=0.1, compute_s=0.3, comm_s=0.1)
            if step == STEPS_PER_EPOCH - 1:
                events.write("epoch", epoch=epoch, seconds=2.5, train_loss=0.5, rows=500, validation={"loss": 0.4, "auc": 0.7 + epoch / 10})


def _finish(config: Config) -> ModelCard:
    """Give the run a model, an evaluation, a report and its result."""
    manifest = write_dataset(Path(config.dataset), [[30]]).manifest(1)
    torch.manual_seed(0)
    model = build_model(config.model, shapes_of(manifest.task, manifest.preprocessing))
    card = save_model(config.run_url, model.state_dict(), ModelCard(
        name="tiny", model=config.model, preprocessing=manifest.preprocessing, dataset_url=config.dataset, dataset_version=1,
        content_id=manifest.content_id, epoch=2, step=10, validation={"loss": 0.4, "auc": 0.8}, code_version="0"))
    Path(config.run_url, "evaluation.json").write_text(
        json.dumps({"split": "test", "base_rate": {}, "network": {"auc": 0.75, "rows": 9, "curve": [1]}, "weights_sha256": ""}))
    Path(config.run_url, "report.html").write_text("<html>")
    RunFolder(config.run_url).finish(TrainSummary(steps=10, resumed_at=0))
    return card


def _require_whole(uri: str, run_id: str) -> None:
    """All of the run is there, each value once."""
    losses = history(uri, run_id, "train/loss")
    assert [step for step, _ in losses] == list(range(1, 11))
    np.testing.assert_allclose([loss for _, loss in losses], [np.nan if number == 2 else 1 / (1 + number) for number in range(10)])
    assert history(uri, run_id, "validation/auc") == [(5, 0.7), (10, pytest.approx(0.8))]
    assert [step for step, _ in history(uri, run_id, "train/rows_per_s")] == list(range(1, 11))
    assert history(uri, run_id, "test/auc") == [(10, 0.75)]
    assert history(uri, run_id, "best/auc") == [(10, 0.8)]


def _artifacts(uri: str, run_id: str) -> set[str]:
    return {each.path for each in client_of(uri).list_artifacts(run_id)}


def test_a_run_is_sent_with_its_params_metrics_and_files_and_only_once(uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = _config(tmp_path, uri)
    _write_generation(config, 0, first=0, last=7)
    _write_generation(config, 0, first=0, last=7, rank=1)  # another rank's records are nobody's to send
    _write_generation(config, 1, first=5, last=9)  # begins again from the checkpoint after 5 steps
    _finish(config)
    capfd.readouterr()
    sent = track(config)
    assert capfd.readouterr() == ("", "")  # MLflow's client says much by itself
    _require_whole(uri, sent.mlflow_run_id)
    run = client_of(uri).get_run(sent.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params.items() >= {"model.kind": "tabular", "train.optimizer.lr": "0.001", "content_id": "c1", "ranks": "2"}.items()
    assert run.data.tags["sparkring.generation"] == "1"
    assert _artifacts(uri, sent.mlflow_run_id) == {"model", "model_card.json", "evaluation.json", "report.html"}

    again = track(config)
    assert (again.mlflow_run_id, again.metrics, again.files) == (sent.mlflow_run_id, 0, ())
    Path(config.run_url, "report.html").write_text("<html><body>")
    assert track(config).files == ("report.html",)


def _require_one_after_each_death(uri: str, folder: Path, *, done: bool, files: bool) -> None:
    """Die at each request that changes something, in a run of its own, and send again."""
    def run(name: str) -> Config:
        config = _config(folder / name, uri)
        _write_generation(config, 0, first=0, last=9)
        if files:
            _finish(config)
        return config

    with HttpFaults() as seen:
        track(run("undisturbed"))
    assert len(seen.acts) >= (12 if files else 5)
    for number in range(len(seen.acts)):
        config = run(f"{number}-{done}-{files}")
        with HttpFaults(at=number, done=done) as faults, pytest.raises(TrackingFailed):
            track(config)
        assert faults.struck
        sent = track(config)
        assert [step for step, _ in history(uri, sent.mlflow_run_id, "train/loss")] == list(range(1, 11))
        if files:
            _require_whole(uri, sent.mlflow_run_id)
        experiment = client_of(uri).get_experiment_by_name(f"{number}-{done}-{files}")
        assert len(client_of(uri).search_runs([experiment.experiment_id])) == 1, f"died at request {number}"


@pytest.mark.nightly
def test_a_sender_whose_answer_is_lost_at_any_request_is_followed_by_one_that_sends_the_rest_once(uri: str, tmp_path: Path) -> None:
    _require_one_after_each_death(uri, tmp_path, done=True, files=False)


@pytest.mark.nightly
@pytest.mark.parametrize("done", [False, True])
def test_a_sender_that_dies_at_any_request_of_a_whole_run_is_followed_by_one_that_sends_the_rest_once(
        uri: str, tmp_path: Path, *, done: bool) -> None:
    _require_one_after_each_death(uri, tmp_path, done=done, files=True)


def test_what_one_request_cannot_hold_is_sent_by_several(uri: str, tmp_path: Path) -> None:
    config = _config(tmp_path, uri)
    _write_generation(config, 0, first=0, last=399)
    with HttpFaults() as seen:
        sent = track(config)
    assert sent.metrics > 1200
    assert [step for step, _ in history(uri, sent.mlflow_run_id, "train/loss")] == list(range(1, 401))
    with HttpFaults() as more:
        _write_generation(config, 1, first=395, last=405)
        assert track(config).metrics == 6 * 3 + 4
    assert len(more.acts) < len(seen.acts)


def test_the_model_is_a_pyfunc_that_takes_raw_rows(uri: str, tmp_path: Path) -> None:
    import mlflow.pyfunc

    config = _config(tmp_path, uri, registered_model=f"model of {tmp_path.name}")
    _write_generation(config, 0, first=0, last=9)
    card = _finish(config)
    sent = track(config)
    local = client_of(uri).download_artifacts(sent.mlflow_run_id, "model", str(tmp_path))
    assert not [path.name for path in Path(local).rglob("*") if path.suffix == ".pkl" or path.name in ("uv.lock", "pyproject.toml")]
    loaded = mlflow.pyfunc.load_model(local)
    assert loaded.metadata.get_input_schema().input_names() == ["height", "weight", "age", "colour"]
    assert loaded.metadata.get_output_schema().input_names() == ["prediction", "probability"]
    rows = pd.DataFrame({"height": [0.5, np.nan], "weight": [-1.0, 2.0], "age": [0.0, 3.0], "colour": ["green", "mauve"]}, index=[7, 3])
    found = loaded.predict(rows)
    model, _ = load_model(config.run_url)
    with torch.inference_mode():
        logits = model(numeric=torch.tensor([[0.5, -1, 0], [0, 2, 3]]), categorical=torch.tensor([[2], [0]]))
    assert list(found.index) == [7, 3]
    assert found["probability"].to_list() == torch.sigmoid(logits.double()).tolist()
    assert 0 < loaded.predict(loaded.input_example)["probability"][0] < 1

    version, = client_of(uri).search_model_versions(f"name = 'model of {tmp_path.name}'")
    assert version.tags["sparkring.weights_sha256"] == card.weights_sha256
    track(config)
    assert len(client_of(uri).search_model_versions(f"name = 'model of {tmp_path.name}'")) == 1


@pytest.mark.parametrize(("class_type", "classes", "kind"), [
    ("string", ("no", "yes", "oui"), "string"), ("bigint", ("-3", "7", "9"), "long"), ("tinyint", ("1", "2", "5"), "integer")])
@pytest.mark.nightly
def test_a_model_of_several_classes_predicts_as_scoring_does_in_the_label_s_own_type(
        tmp_path: Path, class_type: str, classes: tuple[str, ...], kind: str) -> None:
    import mlflow.pyfunc

    from sparkring.spark_jobs.scoring.network import _answers

    fitted = Preprocessing.model_validate({
        "numeric": [{"column": "km", "mean": 1.0, "std": 2.0, "nulls": 0}], "categorical": [], "train_rows": 9,
        "classes": classes, "class_type": class_type, "buckets": [{"column": "km_bucket", "of": "km", "edges": [0.0, 2.0]}]})
    config = train_config(tmp_path, model={"hidden": [4]})
    network = build_model(config.model, shapes_of("multiclass", fitted))
    card = save_model(config.run_url, network.state_dict(), ModelCard(
        name="tiny", model=config.model, task="multiclass", preprocessing=fitted, dataset_url="", dataset_version=1, content_id="", epoch=1,
        step=1, validation={}, code_version="0"))
    folder = tmp_path / "model"
    loaded = mlflow.pyfunc.load_model(str(write_model_folder(config.run_url, card, folder)))
    assert [(each.name, each.type.name) for each in loaded.metadata.get_output_schema().inputs[:2]] == [
        ("prediction", kind), ("probability", "double")]
    found = loaded.predict(pd.DataFrame({"km": [1.0, 2.0, -9.0, np.nan]}))
    inputs = {"numeric": torch.tensor([[0.0], [0.5], [-5.0], [0.0]]), "categorical": torch.tensor([[2], [3], [1], [0]])}
    with torch.inference_mode():
        answers = _answers(load_model(config.run_url)[0](**inputs), inputs, card)
    expected = {name: values.tolist() for name, values in answers.items()}
    expected["prediction"] = classes_of(fitted)[answers["prediction"]].tolist()
    assert {name: found[name].to_list() for name in found.columns} == expected


def test_aliases_are_kept_equal_to_ours(uri: str, tmp_path: Path) -> None:
    name = f"aliases of {tmp_path.name}"
    config = _config(tmp_path, uri, registered_model=name)
    _write_generation(config, 0, first=0, last=9)
    card = _finish(config)
    tracking, model = config.tracking, TrainedModel(run="first", weights_sha256=card.weights_sha256)
    assert tracking is not None
    with pytest.raises(TrackingFailed, match=f"has no version of {name} from run first"):
        mirror_aliases(tracking, {"champion": model})
    track(config)
    assert mirror_aliases(tracking, {"champion": model, "candidate": model}) == ("champion", "candidate")
    assert mirror_aliases(tracking, {"champion": model, "candidate": model}) == ()
    assert mirror_aliases(tracking, {"champion": model, "candidate": None}) == ("candidate",)
    assert client_of(uri).get_registered_model(name).aliases == {"champion": "1"}
    with pytest.raises(ConfigError, match=r"tracking\.registered_model is not set"):
        mirror_aliases(TrackingConfig(mlflow_uri=uri), {"champion": model})


class _Answers500(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(500)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that is overridden
        pass


def test_a_server_that_answers_500_or_does_not_answer_is_one_sentence_and_leaves_no_half(uri: str, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers500) as broken:
        Thread(target=broken.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{broken.server_address[1]}"
        config = _config(tmp_path, address)
        _write_generation(config, 0, first=0, last=9)
        with pytest.raises(TrackingFailed) as raised:
            track(config)
        broken.shutdown()
    assert str(raised.value) == f"MLflow at {address} answered 500; what was sent stays, and `sparkring track` sends the rest."
    with held_ports(1) as [closed]:
        nowhere = f"http://127.0.0.1:{closed}"
        with pytest.raises(TrackingFailed, match=f"^MLflow at {nowhere} does not answer; "):
            track(_config(tmp_path, nowhere))
    _finish(config)
    _require_whole(uri, track(_config(tmp_path, uri)).mlflow_run_id)


def _tracked(config: Config, notes: Notes) -> AbstractContextManager[None]:
    return tracked(config, progress=notes)


def _sent(config: Config) -> dict[str, Any]:
    path = Path(config.run_url, "tracking.json")
    return json.loads(path.read_bytes()) if path.exists() else {"steps": 0}


def test_metrics_come_while_a_run_trains_and_its_end_is_mlflow_s_too(uri: str, tmp_path: Path) -> None:
    config, notes = _config(tmp_path, uri, finish_s=60), Notes()
    with pytest.raises(RuntimeError, match="a rank died"), _tracked(config, notes):
        _write_generation(config, 0, first=0, last=6)
        run_id = await_condition(lambda: _sent(config)["steps"] == 7 and _sent(config)["mlflow_run_id"], "seven steps")
        assert [step for step, _ in history(uri, run_id, "train/loss")] == list(range(1, 8))
        assert client_of(uri).get_run(run_id).info.status == "RUNNING"
        raise RuntimeError("a rank died")
    assert client_of(uri).get_run(run_id).info.status == "FAILED"
    with pytest.raises(Stopped), _tracked(config, notes):
        _write_generation(config, 1, first=5, last=7)
        raise Stopped("asked to", signal_number=15)
    assert client_of(uri).get_run(run_id).info.status == "KILLED"
    with _tracked(config, notes):
        _write_generation(config, 2, first=5, last=9)
        await_condition(lambda: _sent(config)["steps"] == 10, "ten steps")
        assert client_of(uri).get_run(run_id).info.status == "RUNNING"
        _finish(config)
    assert client_of(uri).get_run(run_id).info.status == "FINISHED"
    assert notes.of_tracking == []
    _require_whole(uri, run_id)


def test_a_server_that_never_answers_holds_nothing_up(tmp_path: Path) -> None:
    released, asked = Event(), Event()

    class _Hangs(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            released.wait(60)

    with ThreadingHTTPServer(("127.0.0.1", 0), _Hangs) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        config, notes = _config(tmp_path, f"http://127.0.0.1:{server.server_address[1]}", finish_s=0), Notes()
        _write_generation(config, 0, first=0, last=9)
        with _tracked(config, notes):
            assert asked.wait(60)
        assert not released.is_set()  # the block has ended, and the request has not
        assert notes.of_tracking == ["tracking: not everything is in MLflow yet; `sparkring track` with this config sends the rest"]
        released.set()
        server.shutdown()
    await_condition(lambda: all(thread.name != "sparkring-tracking" for thread in enumerate_threads()), "it gives MLflow's settings back")


@pytest.mark.nightly
def test_what_was_sent_to_another_server_is_sent_anew(uri: str, tmp_path: Path) -> None:
    config = _config(tmp_path, uri)
    _write_generation(config, 0, first=0, last=9)
    first = track(config)
    other = track(_config(tmp_path, uri, experiment="another experiment"))
    assert other.mlflow_run_id != first.mlflow_run_id
    assert other.metrics == first.metrics


def test_two_processes_do_not_send_one_run(uri: str, tmp_path: Path) -> None:
    config = _config(tmp_path, uri)
    _write_generation(config, 0, first=0, last=1)
    assert config.tracking is not None
    with sending(config.run_url, config.tracking), pytest.raises(CommitConflict, match="is being sent to MLflow by another process"):
        track(config)
