"""A run that goes on by itself: a killed rank, a request to stop, slots that come back; always the weights of the undisturbed run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession
from safetensors.torch import load_file

from harness.datasets import write_dataset
from sparkring.conf.schema import Config
from sparkring.errors import RankFailed, Stopped
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.ring import run_ring
from sparkring.spark_jobs.spark.progress import SilentProgress
from sparkring.spark_jobs.stored.audit import audit
from sparkring.spark_jobs.train import train
from tests.support import seams
from tests.support.training import await_condition, events_of, largest_difference, train_config, weights_of_run

pytest_plugins = ["tests.support.spark_sessions"]

FILES = ([600, 600], [300], [501])
EPOCHS = 4
STEPS = 201
"""Of an epoch."""
DEADLINE_S = 90.0
ORPHANS_END_S = 10.0
"""Seconds after the driver's end in which all that it started has to be gone."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def _config(workspace: Path, **settings: Any) -> Config:
    write_dataset(workspace / "dataset", FILES)
    return _changed(workspace, **settings)


def _changed(workspace: Path, **settings: Any) -> Config:
    defaults = {"epochs": EPOCHS, "batch_rows": 10, "precision": "float64", "checkpoint_steps": 50, "lanes": 24,
                "optimizer": {"name": "adam", "schedule": "constant"}}
    return train_config(workspace, model={"hidden": [16]}, train={**defaults, **settings})


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    train(_config(folder), spark=spark)
    return folder


def _require_same(folder: Path, undisturbed: Path) -> None:
    """The weights of the undisturbed run, to rounding where the ranks were others meanwhile, and every row exactly once an epoch."""
    assert largest_difference(weights_of_run(folder), weights_of_run(undisturbed)) < 1e-10
    proved = audit(str(folder / "runs/first"))
    assert (proved.finished, proved.epochs) == (True, EPOCHS)


class Trained(threading.Thread):
    """A call of train in a thread of its own; whatever it raises is kept."""

    def __init__(self, config: Config, spark: SparkSession, **options: Any) -> None:
        super().__init__(daemon=True)
        self._config, self._spark, self._options = config, spark, options
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            train(self._config, spark=self._spark, **self._options)
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            self.error = error

    def ended(self) -> BaseException | None:
        """Wait for the end; the error, if there was one."""
        self.join(DEADLINE_S)
        assert not self.is_alive()
        return self.error


def test_killed_ranks_are_replaced_and_the_run_ends_as_if_nothing_had_been(spark: SparkSession, tmp_path: Path, undisturbed: Path) -> None:
    config = _config(tmp_path)
    running = Trained(config, spark)
    for generation, rank in ((0, 1), (1, 0)):
        begun = max(Checkpoints(config.run_url).numbers(), default=0)
        await_condition(lambda: [one for one in events_of(config, "start") if one["generation"] == generation], f"generation {generation}")  # noqa: B023
        await_condition(lambda: Checkpoints(config.run_url).numbers()[-1:] > [begun], "a checkpoint")  # noqa: B023
        (pid,) = [one["pid"] for one in events_of(config, "start") if (one["generation"], one["rank"]) == (generation, rank)]
        os.kill(pid, signal.SIGKILL)
        await_condition(lambda: not psutil.pid_exists(pid), "its end")  # noqa: B023
    assert running.ended() is None
    assert {record["generation"] for record in events_of(config, "start")} == {0, 1, 2}
    _require_same(tmp_path, undisturbed)


def test_a_run_that_is_asked_to_stop_saves_and_the_same_call_goes_on_with_other_ranks(
        spark: SparkSession, tmp_path: Path, undisturbed: Path) -> None:
    config, stop = _config(tmp_path, checkpoint_steps=10_000), StopRequest()
    running = Trained(config, spark, stop=stop)
    await_condition(lambda: events_of(config, "step"), "a step")
    stop.ask("the test")
    error = running.ended()
    assert isinstance(error, Stopped), error
    saved = Checkpoints(config.run_url).numbers()[-1]
    assert f"after {saved} steps" in str(error)
    last = max(record["epoch"] * STEPS + record["step"] + 1 for record in events_of(config, "step"))
    assert saved == last  # not a step is lost
    train(_changed(tmp_path, num_ranks=3, checkpoint_steps=10_000), spark=spark)
    _require_same(tmp_path, undisturbed)


def test_ranks_take_sigterm_as_a_request_to_stop_too(spark: SparkSession, tmp_path: Path, undisturbed: Path) -> None:
    config = _config(tmp_path, checkpoint_steps=10_000)
    running = Trained(config, spark)
    await_condition(lambda: events_of(config, "step"), "a step")
    pid = next(record["pid"] for record in events_of(config, "start") if record["rank"] == 1)
    os.kill(pid, signal.SIGTERM)
    assert running.ended() is None  # the machine that is taken away has taken one rank: the run goes on with those that are left
    assert {record["generation"] for record in events_of(config, "start")} == {0, 1}
    _require_same(tmp_path, undisturbed)


@pytest.mark.parametrize(("number", "code"), [
    pytest.param(signal.SIGTERM, 143, id="sigterm", marks=pytest.mark.nightly), pytest.param(signal.SIGINT, 130, id="ctrl-c")])
def test_the_command_saves_when_it_is_asked_to_end(
        spark: SparkSession, tmp_path: Path, undisturbed: Path, number: int, code: int) -> None:
    config = _config(tmp_path, checkpoint_steps=10_000)
    path = tmp_path / "config.yaml"
    path.write_text(config.model_dump_json(), encoding="utf-8")  # JSON is YAML
    command = ["env", "--default-signal=INT", sys.executable, "-m", "sparkring", "train", str(path), "--set", "spark.master=local[2]"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ) as process:
        await_condition(lambda: events_of(config, "step"), "a step")
        ranks = [psutil.Process(record["pid"]) for record in events_of(config, "start")]
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "Traceback" not in output
    assert output.splitlines()[-1].startswith("stopped as asked (")
    assert output.endswith("which are saved; the same command resumes from there.\n")
    await_condition(lambda: not any(rank.is_running() for rank in ranks), "the end of all ranks")
    train(config, spark=spark)
    _require_same(tmp_path, undisturbed)


class _Slots:
    """How many slots the supervisor is told of, whatever Spark has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.count = count
        monkeypatch.setattr(seams.SLOTS_SLOTS_OF, lambda *_: self.count)


def test_a_run_goes_on_with_fewer_ranks_and_grows_back(spark: SparkSession, tmp_path: Path, undisturbed: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    slots = _Slots(monkeypatch, 3)
    config = _config(tmp_path, num_ranks=3, recovery={"wait_for_slots_s": 0.0})
    running = Trained(config, spark)
    await_condition(lambda: events_of(config, "checkpoint"), "a checkpoint")
    slots.count = 1
    os.kill(events_of(config, "start")[0]["pid"], signal.SIGKILL)
    await_condition(lambda: [one for one in events_of(config, "step") if one["generation"] == 1], "a step of one rank")
    slots.count = 3
    assert running.ended() is None
    sizes = {record["generation"]: record["size"] for record in events_of(config, "start")}
    assert sizes == {0: 3, 1: 1, 2: 3}
    _require_same(tmp_path, undisturbed)


def test_a_loss_that_is_not_finite_stops_all_ranks_and_is_not_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path, optimizer={"name": "sgd", "lr": 1e300, "schedule": "constant"})
    said: list[str] = []

    class Notes(SilentProgress):
        def note(self, text: str) -> None:
            said.append(text)

    with pytest.raises(RankFailed, match="NotFinite: step"):
        train(config, spark=spark, progress=Notes())
    assert not said
    assert {record["generation"] for record in events_of(config, "start")} == {0}


def test_a_step_that_is_not_finite_can_be_skipped(spark: SparkSession, tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", FILES, nan_row=1234)
    config = _changed(tmp_path, epochs=2, on_nonfinite="skip")
    train(config, spark=spark)
    warned = [record["text"] for record in events_of(config, "warning")]
    assert [text.partition(": ")[2] for text in warned] == ["the loss is nan; skipped"] * 2  # the step that has that row, in each epoch
    weights = load_file(next((tmp_path / "runs/first/model").glob("*.safetensors")))
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())


def test_tasks_on_a_host_that_is_left_out_are_no_ranks_and_a_ring_needs_none_of_them(spark: SparkSession) -> None:
    assert run_ring(_size, num_ranks=2, spark=spark, left_out=("a host of another name",)) == [2, 2]  # three tasks, one stands by
    assert run_ring(_size, num_ranks=3, spark=spark, left_out=(socket.gethostname(),)) == [3, 3, 3]  # for want of others


def _size(context: RankContext) -> int:
    return context.size


@pytest.mark.parametrize("victim", ["the JVM", pytest.param("the Python driver", marks=pytest.mark.nightly)])
def test_whoever_of_the_driver_is_killed_no_rank_is_left_and_the_same_command_goes_on(
        spark: SparkSession, tmp_path: Path, undisturbed: Path, victim: str) -> None:
    config = _config(tmp_path)
    with _command(tmp_path, config) as process:
        await_condition(lambda: Checkpoints(config.run_url).numbers(), "a checkpoint")
        ranks = [psutil.Process(record["pid"]) for record in events_of(config, "start")]
        driver = psutil.Process(process.pid)
        (jvm,) = [child for child in driver.children(recursive=True) if child.name() == "java"]
        everyone = [jvm, *jvm.children(recursive=True), *ranks]
        (jvm if victim == "the JVM" else driver).kill()
        assert [one for one in psutil.wait_procs(everyone, timeout=ORPHANS_END_S)[1] if _works(one)] == []
        output, _ = process.communicate(timeout=60)
    assert process.returncode == (2 if victim == "the JVM" else -signal.SIGKILL), output
    if victim == "the JVM":
        assert output.splitlines()[-1].startswith("error: "), output
        assert "Traceback" not in output, output
        assert "restarting from" not in output, output
    if victim == "the JVM":
        train(config, spark=spark)  # as the command does; a Spark of its own would take most of the time
    else:
        with _command(tmp_path, config) as again:
            output, _ = again.communicate(timeout=DEADLINE_S)
        assert again.returncode == 0, output
    assert {record["generation"] for record in events_of(config, "start")} == {0, 1}
    _require_same(tmp_path, undisturbed)


def _works(process: psutil.Process) -> bool:
    """Whether it has not ended; one that has may wait for whoever took it over from a killed parent to hear so."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def _command(folder: Path, config: Config) -> Iterator[subprocess.Popen[str]]:
    """``sparkring train`` in a process of its own."""
    path = folder / "config.yaml"
    path.write_text(config.model_dump_json(), encoding="utf-8")  # JSON is YAML
    command = ["env", "--default-signal=INT", sys.executable, "-m", "sparkring", "train", str(path), "--set", "spark.master=local[2]"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ) as process:
        yield process
