"""Faults on purpose: when they are due, that each strikes once, and what they cost, worked by hand from a few events."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from sparkring.cli.app import app
from sparkring.errors import CheckpointDamaged, ConfigError
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.spark_jobs.chaos import ChaosResult
from sparkring.spark_jobs.fault_injection.faults import FAILED_WRITES, KINDS, Fault, Kind, Strike, draw
from sparkring.spark_jobs.fault_injection.injector import FaultInjector, damage_newest, pause, strikes
from sparkring.spark_jobs.fault_injection.losses import losses
from tests.support import seams
from tests.support.configs import MINIMAL, write
from tests.support.training import await_condition

START = {"steps_per_epoch": 10, "epochs": 2}


def test_the_same_seed_draws_the_same_faults_evenly_over_run_and_kinds() -> None:
    drawn = draw(12, seed=7)
    assert drawn == draw(12, seed=7) != draw(12, seed=8)
    assert sorted(fault.kind for fault in drawn) == sorted(KINDS * 2)
    due = [fault.due(1000) for fault in drawn]
    assert due == sorted(due)
    assert max(later - sooner for sooner, later in itertools.pairwise(due)) < 2 * 1000 / 12
    assert {fault.rank(3) for fault in draw(50, seed=1)} == {0, 1, 2}
    assert {fault.rank(1) for fault in draw(50, seed=1)} == {0}


def test_a_fault_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="no fault 'kil'; did you mean 'kill'"):
        draw(3, seed=1, kinds=["kil"])
    with pytest.raises(ConfigError, match="name some of kill, worker"):
        draw(3, seed=1, kinds=[])


# -- the injector ---------------------------------------------------------------------------------------------------


def _injector(folder: Path, *faults: Fault, rank: int = 0, generation: int = 0) -> FaultInjector:
    made = FaultInjector(faults, open_store(str(folder)), rank=rank, size=2, generation=generation)
    made.hear("start", START)
    return made


def _fault(kind: Kind, *, share: float = 0.5, victim: float = 0.0, number: int = 0) -> Fault:
    return Fault(number=number, kind=kind, share=share, victim=victim)


def _step(injector: FaultInjector, number: int) -> None:
    injector.hear("step", {"epoch": number // 10, "step": number % 10})


def test_a_fault_strikes_its_rank_at_its_step_and_never_again(tmp_path: Path) -> None:
    struck, spared = _injector(tmp_path, _fault("disk")), _injector(tmp_path, _fault("disk"), rank=1)
    for one in (struck, spared):
        for number in range(9):
            _step(one, number)
        assert strikes(open_store(str(tmp_path))) == []
        one.require_space()
    for one in (spared, struck):
        _step(one, 9)
    (strike,) = await_condition(lambda: strikes(open_store(str(tmp_path))), "the strike")
    assert (strike.kind, strike.rank, strike.steps, strike.generation) == ("disk", 0, 10, 0)
    for _ in range(FAILED_WRITES):
        with pytest.raises(OSError, match="No space left on device"):
            await_condition(struck.require_space, "the full disk")
    struck.require_space()
    spared.require_space()
    again = _injector(tmp_path, _fault("disk"), generation=1)  # resumed before that step
    _step(again, 9)
    _step(again, 10)
    again.require_space()
    assert len(strikes(open_store(str(tmp_path)))) == 1


def test_faults_that_are_due_together_strike_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[int, Kind]] = []
    monkeypatch.setattr(seams.FAULT_INJECTOR_ACT, lambda self, kind: done.append((self._done, kind)))
    one = _injector(tmp_path, _fault("kill", number=0), _fault("suspend", number=1), _fault("worker", number=2, share=0.55))
    for number in range(9, 12):
        _step(one, number)
        await_condition(lambda: len(done) == number - 8, "the strike")  # noqa: B023
    assert done == [(10, "kill"), (11, "suspend"), (12, "worker")]


def test_a_checkpoint_is_damaged_when_it_has_just_been_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Kind] = []
    monkeypatch.setattr(seams.FAULT_INJECTOR_ACT, lambda _, kind: done.append(kind))
    one = _injector(tmp_path, _fault("corrupt", victim=0.9))
    one.hear("checkpoint", {})
    for number in range(12):
        _step(one, number)
    assert done == []
    one.hear("checkpoint", {})
    assert done == ["corrupt"]


def test_a_byte_that_was_flipped_is_found_in_the_newest_checkpoint_alone(tmp_path: Path) -> None:
    store, checkpoints = open_store(str(tmp_path)), Checkpoints(str(tmp_path))
    assert damage_newest(store) == ""
    for steps in (10, 20):
        part = checkpoints.put_part(bytes(range(200)), steps=steps, rank=0)
        checkpoints.commit(CheckpointDocument(position=Position(steps_done=steps), content_id="c", dataset_version=1, seed=1, lanes=24,
                                              batch_rows=10, code_version="0", parts=(part,)))
    checkpoints.read(20)
    assert damage_newest(store).startswith("checkpoints/data/20-0-")
    with pytest.raises(CheckpointDamaged, match="BLAKE3"):
        checkpoints.read(20)
    checkpoints.read(10)


def test_a_process_stands_still_and_goes_on() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        watched = psutil.Process(process.pid)
        pause(process.pid, 3.0)
        await_condition(lambda: watched.status() == psutil.STATUS_STOPPED, "its stop")
        await_condition(lambda: watched.status() != psutil.STATUS_STOPPED, "its waking")
        process.kill()


# -- what it cost ---------------------------------------------------------------------------------------------------


def _start(generation: int, *, size: int, epoch: int = 0, step: int = 0) -> dict[str, Any]:
    return {"event": "start", "time": 0.0, "generation": generation, "rank": 0, "size": size, "steps_per_epoch": 10, "epoch": epoch,
            "step": step}


def _done(generation: int, number: int, *, time: float, rows: int = 5, rank: int = 0, **more: Any) -> dict[str, Any]:
    return {"event": "step", "time": time, "generation": generation, "rank": rank, "epoch": number // 10, "step": number % 10, "rows": rows,
            "data_s": 0.0, "compute_s": 1.0, "comm_s": 0.0, **more}


def _strike(kind: Kind, *, generation: int, steps: int, time: float, number: int = 0) -> Strike:
    return Strike(number=number, kind=kind, rank=1, host="a", generation=generation, steps=steps, time=time)


def _disturbed() -> list[dict[str, Any]]:
    """Ten steps of a second each: six, a strike, from the fourth again on one rank, a growth after eight."""
    return [_start(0, size=2), *(_done(0, number, time=1.0 + number) for number in range(6)),
            _start(1, size=1, step=4), *(_done(1, number, time=16.0 + number) for number in range(4, 8)),
            _start(2, size=2, step=8), *(_done(2, number, time=17.0 + number) for number in range(8, 10))]


def test_what_a_strike_cost_is_read_off_the_events() -> None:
    found = losses(_disturbed(), [_strike("kill", generation=0, steps=6, time=6.5)], rows_per_epoch=50)
    (resumption,) = found.resumptions
    assert (resumption.ranks, resumption.resume_s, resumption.steps_redone) == ((2, 1), 13.5, 2)
    assert (found.rows_lost, found.rows_repeated, found.steps) == (0, 0, 10)
    assert found.wall_s == 26.0  # from the start of step 0 to the end of step 9
    assert found.useful_s == 4.0 + 4.0 + 2.0  # two steps of the first generation were in vain
    assert found.goodput == 10.0 / 26.0


def test_a_fault_that_the_ring_lives_through_costs_no_restart() -> None:
    found = losses(_disturbed(), [_strike("delay", generation=0, steps=3, time=3.5), _strike("disk", generation=2, steps=9, time=26.0)],
                   rows_per_epoch=50)
    assert [(one.resume_s, one.steps_redone) for one in found.resumptions] == [(None, 0), (None, 0)]


def test_a_strike_after_which_nothing_came_has_no_resumption() -> None:
    (resumption,) = losses(_disturbed(), [_strike("kill", generation=2, steps=10, time=28.0)], rows_per_epoch=50).resumptions
    assert resumption.resume_s is None


@pytest.mark.parametrize(("rows", "expected"), [({"rows": 4}, (1, 0)), ({"rows": 7}, (0, 2))])
def test_rows_that_are_missing_or_come_twice_are_counted(rows: dict[str, Any], expected: tuple[int, int]) -> None:
    records = [*_disturbed(), _done(3, 9, time=40.0, **rows)]
    found = losses(records, [], rows_per_epoch=50)
    assert (found.rows_lost, found.rows_repeated) == expected


def test_where_row_ids_are_recorded_each_row_is_looked_for() -> None:
    def records(last: list[int]) -> list[dict[str, Any]]:
        return [_start(0, size=1), _done(0, 0, time=1.0, rows=3, row_ids=[0, 1, 2]), _done(0, 1, time=2.0, rows=2, row_ids=last)]

    right, wrong = (losses(records(last), [], rows_per_epoch=5) for last in ([3, 4], [3, 0]))
    assert (right.rows_lost, right.rows_repeated) == (0, 0)
    assert (wrong.rows_lost, wrong.rows_repeated) == (1, 1)  # as many rows as there should be, but not those


# -- the command ----------------------------------------------------------------------------------------------------


def _result(**changes: Any) -> ChaosResult:
    found = losses(_disturbed(), [_strike("kill", generation=0, steps=6, time=6.5)], rows_per_epoch=50)
    values: dict[str, Any] = {
        "url": "runs/x/run", "survived": True, "failure": "", "planned": 2, "struck": 1, "kinds": {"kill": 1}, "restarts": 1,
        "checkpoint_interval": 50, "rows_lost": 0, "rows_repeated": 0, "steps_redone": 2, "steps_redone_max": 2, "resume_s_median": 13.5,
        "resume_s_max": 13.5, "goodput": 0.5, "audit": "green", "validation": {"loss": 0.25}, "undisturbed": {"loss": 0.24},
        "weights_difference": 1e-12, "losses": found}
    return ChaosResult(**{**values, **changes})


@pytest.mark.parametrize(("changes", "code", "words"), [
    ({}, 0, "1 of 2 faults struck (1 kill), 1 restarts: the run finished"),
    ({}, 0, "validation loss 0.2500, undisturbed 0.2400"),
    ({"rows_lost": 3}, 1, "rows lost 3, rows repeated 0"),
    ({"audit": "events/0-1.jsonl line 3 does not have the hash"}, 1, "audit: events/0-1.jsonl line 3"),
    ({"survived": False, "failure": "rank 1 was killed", "validation": {}, "weights_difference": None}, 1, "run ended: rank 1 was killed"),
    ({"resume_s_median": None, "resume_s_max": None}, 0, "audit: green"),
])
def test_the_command_says_what_was_lost_and_fails_where_something_was(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], code: int, words: str) -> None:
    asked: dict[str, Any] = {}

    def pretended(_config: Any, **options: Any) -> ChaosResult:
        asked.update(options)
        return _result(**changes)

    monkeypatch.setattr(seams.CHAOS_CHAOS, pretended)
    config = write(tmp_path, "tiny.yaml", MINIMAL)
    ended = CliRunner().invoke(app, ["chaos", config, "--kills", "2", "--seed", "7", "--kinds", "kill, suspend"])
    assert (ended.exit_code, words in ended.output) == (code, True), ended.output
    assert (asked["num_faults"], asked["seed"], asked["kinds"]) == (2, 7, ["kill", "suspend"])
