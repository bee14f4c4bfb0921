"""A comparison without Spark: which runs it takes as its own, where trainings are made on paper, and what it says of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.datasets import write_dataset
from sparkring.cli.app import app
from sparkring.conf.schema import Config, ParallelConfig, RingConfig, TrainConfig
from sparkring.conf.schema.strategy import LocalSgdConfig, StaleSyncConfig
from sparkring.errors import ConfigError, Stopped
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import EventWriter
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.spark_jobs.comparing.compare import ComparisonResult, compare
from sparkring.spark_jobs.comparing.runs import UNTIMED, UNTIMED_OF_RING, settings_of
from sparkring.spark_jobs.reporting.comparison.page import write_comparison
from sparkring.spark_jobs.run.folder import RunFolder
from sparkring.spark_jobs.run.identity import FREE_TO_CHANGE, identity_of
from sparkring.spark_jobs.run.place import with_run
from sparkring.spark_jobs.train import TrainResult
from tests.support import seams
from tests.support.configs import MINIMAL, write
from tests.support.training import train_config


class OnPaper:
    """Trains on paper: writes what a run leaves behind, two steps and a checkpoint."""

    def __init__(self) -> None:
        self.trained: list[Config] = []
        """The configs of trainings that began or went on."""
        self.stopped_at = math.inf
        """The training of that number is stopped at its checkpoint."""
        self.ranks: int | None = None
        """Ranks that Spark has; None: as many as it is asked for."""
        self.losses: Sequence[float | None] = (0.7, 0.5)

    def __call__(self, config: Config, **_: Any) -> TrainResult:
        manifest = Dataset(config.dataset).manifest(config.dataset_version)
        config = with_run(config, manifest)
        folder = RunFolder(config.run_url)
        folder.claim(identity_of(config.fitted_to(manifest.splits["train"].rows), manifest), dataset_url=config.dataset, lanes_given=False)
        reused = folder.result() is not None
        if not reused:
            self.trained.append(config)
            self._train(config.changed(train=config.train.changed(num_ranks=self.ranks or config.train.num_ranks)), folder)
            if len(self.trained) == self.stopped_at:
                raise Stopped("stopped as asked")
            folder.finish(TrainSummary(steps=len(self.losses), resumed_at=0))
        return TrainResult(run=folder.name, url=folder.url, reused=reused, resumed_at=0, epochs=1, steps=len(self.losses),
                           validation={"loss": 0.5}, seconds=1.0)

    def _train(self, config: Config, folder: RunFolder) -> None:
        generation, ranks = folder.claim_generation(), config.train.num_ranks
        for rank in range(ranks):
            with EventWriter(folder.url, generation=generation, rank=rank) as events:
                events.write("start", size=ranks, host="here")
                for number, loss in enumerate(self.losses):
                    events.write("step", epoch=0, step=number, rows=5, global_rows=5 * ranks, loss=loss, data_s=0.0, compute_s=1.0,
                                 comm_s=0.0, sent_bytes=100)
                if rank == 0:
                    known = [loss for loss in self.losses if loss is not None]
                    events.write("epoch", epoch=0, train_loss=known[-1] if known else math.nan)
        checkpoints = Checkpoints(folder.url)
        if not checkpoints.numbers():
            checkpoints.commit(CheckpointDocument(
                position=Position(), content_id="c", dataset_version=1, seed=1, lanes=24, batch_rows=32, generation=generation,
                code_version="1", config=config.model_dump(mode="json", include={"model", "train"})))


@pytest.fixture
def on_paper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OnPaper:
    write_dataset(tmp_path / "dataset", ([600],))
    trainer = OnPaper()
    monkeypatch.setattr(seams.COMPARE_TRAIN, trainer)
    monkeypatch.setattr(seams.COMPARE_WRITE_COMPARISON, lambda *_, **__: "")  # pictures take their time
    return trainer


@pytest.fixture
def with_page(on_paper: OnPaper, monkeypatch: pytest.MonkeyPatch) -> OnPaper:
    monkeypatch.setattr(seams.COMPARE_WRITE_COMPARISON, write_comparison)
    return on_paper


def _compared(folder: Path, strategies: str = "exact,local_sgd:8", **train: Any) -> ComparisonResult:
    return compare(train_config(folder, train=train), strategies=strategies)


def _names(result: ComparisonResult) -> list[str]:
    return [run.run for run in result.runs]


def test_the_strategy_of_a_config_leaves_nothing_in_those_that_are_compared(on_paper: OnPaper, tmp_path: Path) -> None:
    for own in ({"kind": "local_sgd", "every_steps": 8, "optimizer_state": "keep"}, {"kind": "stale_sync", "bound": 2, "servers": 1}):
        result = _compared(tmp_path, "exact,local_sgd,local_sgd:8,stale_sync:4", strategy=own)
        assert len(set(_names(result))) == 4
    assert [config.train.strategy for config in on_paper.trained[1:]] == [
        LocalSgdConfig(), LocalSgdConfig(every_steps=8), StaleSyncConfig(bound=4)]


@pytest.mark.parametrize("other", [
    {"num_ranks": 3}, {"num_ranks": 5}, {"ring": {"threads_per_rank": 4}}, {"ring": {"allreduce": "ring"}}, {"bucket_mb": 1},
    {"checkpoint_steps": 7}], ids=str)
def test_runs_that_were_trained_under_other_settings_are_not_shown_as_this_config_s(
        on_paper: OnPaper, tmp_path: Path, other: dict[str, Any]) -> None:
    first = _compared(tmp_path)
    second = _compared(tmp_path, **other)
    assert not {*_names(first)} & {*_names(second)}
    assert [run.ranks for run in second.runs] == [(other.get("num_ranks", 2),)] * 2
    assert len(on_paper.trained) == 4
    assert (_names(_compared(tmp_path)), _names(_compared(tmp_path, **other))) == (_names(first), _names(second)), "each finds its own"
    assert len(on_paper.trained) == 4


def test_settings_that_cost_no_step_anything_leave_a_run_what_it_is(on_paper: OnPaper, tmp_path: Path) -> None:
    first = _compared(tmp_path)
    again = _compared(tmp_path, recovery={"restarts": 9}, keep_checkpoints=5, ring={"deadline_s": 60.0, "launcher": "horovod.spark"})
    assert (_names(again), len(on_paper.trained)) == (_names(first), 2)


@pytest.mark.parametrize("before", [{}, {"num_ranks": 3}], ids=["alone", "beside runs of other ranks"])
def test_an_interrupted_comparison_resumes_the_run_that_it_began(on_paper: OnPaper, tmp_path: Path, before: dict[str, Any]) -> None:
    if before:
        _compared(tmp_path, **before)
    on_paper.stopped_at = len(on_paper.trained) + 2
    with pytest.raises(Stopped):
        _compared(tmp_path)
    result = _compared(tmp_path)
    resumed = [config.run for config in on_paper.trained][-3:]
    assert (resumed[0], resumed[2]) == tuple(_names(result))
    assert resumed[1] == resumed[2]


def test_a_run_of_fewer_ranks_for_a_while_is_shown_as_such_and_not_reused(on_paper: OnPaper, tmp_path: Path) -> None:
    on_paper.ranks, on_paper.stopped_at = 1, 1
    with pytest.raises(Stopped):
        _compared(tmp_path)
    on_paper.ranks = None
    result = _compared(tmp_path)
    assert result.runs[0].run.startswith(f"{on_paper.trained[0].run}-2-ranks-")
    assert [run.ring for run in result.runs] == ["2", "2"]


def test_runs_on_unequal_rings_are_told_to_be_so(on_paper: OnPaper, tmp_path: Path) -> None:
    on_paper.stopped_at = 2
    with pytest.raises(Stopped):
        _compared(tmp_path)
    on_paper.ranks = 1
    (folder,) = (path for path in (tmp_path / "runs").glob("*/events") if not (path.parent / "result.json").exists())
    for file in folder.glob("*.jsonl"):
        file.unlink()  # as if the second training had been shrunk before its first step
    result = _compared(tmp_path)
    assert [run.ring for run in result.runs] == ["2", "1"]
    assert result.verdict.endswith(
        "They were not trained on the same ranks, so seconds and bytes say little: exact on 2, local_sgd:8 on 1.")


def test_a_run_that_no_checkpoint_describes_is_not_reused(on_paper: OnPaper, tmp_path: Path) -> None:
    first = _compared(tmp_path)
    for path in (tmp_path / "runs").glob("*/checkpoints/*.json"):
        path.write_text("{}", encoding="utf-8")
    assert not {*_names(first)} & {*_names(_compared(tmp_path))}


def test_ways_to_sum_over_all_ranks_are_left_out_where_there_are_no_such_sums_and_this_is_said(with_page: OnPaper, tmp_path: Path) -> None:
    result = _compared(tmp_path, "exact,stale_sync:4", ring={"allreduce": "auto", "threads_per_rank": 2})
    assert [config.train.ring for config in with_page.trained] == [
        RingConfig(allreduce="auto", threads_per_rank=2), RingConfig(allreduce="horovod", threads_per_rank=2)]
    note = "stale_sync:4 was trained without train.ring.allreduce=auto: it has no sums over all ranks."
    assert [run.note for run in result.runs] == ["", note]
    assert note in Path(result.page.removeprefix("file://")).read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=r"train\.ring\.wire=bf16 rounds gradients, and train\.strategy=stale_sync sends models; set"):
        _compared(tmp_path, "exact,stale_sync:4", ring={"allreduce": "auto", "wire": "bf16"})


def test_a_comparison_whose_losses_are_all_lost_ends_with_a_page_that_says_so(with_page: OnPaper, tmp_path: Path) -> None:
    with_page.losses = (None, None)
    config = write(tmp_path, "mine.yaml", MINIMAL | {"workspace": str(tmp_path)})
    ended = CliRunner().invoke(app, ["compare", config, "--strategies", "exact,local_sgd:8", "--json"], catch_exceptions=False)
    document = json.loads(ended.stdout, parse_constant=pytest.fail)
    assert document["verdict"] == "No finite train loss, and so no judgement: exact, local_sgd:8; try a lower train.optimizer.lr."
    assert [(run["ranks"], run["steps"], run["sent_bytes"], run["loss"]) for run in document["runs"]] == [([2], 2, 400.0, None)] * 2


def test_each_setting_that_is_free_to_change_either_costs_a_step_something_or_does_not() -> None:
    train = TrainConfig(ring=RingConfig(), parallel=ParallelConfig())
    settings = settings_of(train)
    assert {*settings} == FREE_TO_CHANGE - UNTIMED
    assert {*settings["ring"]} == {*RingConfig.model_fields} - UNTIMED_OF_RING
    assert UNTIMED <= FREE_TO_CHANGE
    assert {*RingConfig.model_fields} >= UNTIMED_OF_RING
