"""Schedules as text and CSV, the rules every list must hold, and traces."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkring.errors import ScheduleInvalid
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.files import schedule_from_csv, schedule_to_csv, trace_json
from sparkring.pipelines.parallel.schedules.generators.catalogue import SCHEDULE_NAMES, build_schedule
from sparkring.pipelines.parallel.schedules.rules import check_schedule
from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Schedule, Worker, parse_action
from sparkring.pipelines.parallel.schedules.simulator import TimedAction, simulate
from sparkring.pipelines.parallel.schedules.transfers import without_transfers

CSV = """\
schedule,1f1b,micro_batches=2,num_chunks=2
0.0,F0,SEND_F0,F1,SEND_F1,RECV_B0,B0,RECV_B1,B1,REDUCE,STEP
1.0,RECV_F0,F0,B0,SEND_B0,RECV_F1,F1,B1,SEND_B1,REDUCE,STEP
"""


@given(kind=st.sampled_from(Kind), chunk=st.integers(0, 99), micro_batch=st.integers(0, 999))
def test_an_action_comes_back_from_its_text(kind: Kind, chunk: int, micro_batch: int) -> None:
    action = Action(kind) if kind in (Kind.REDUCE, Kind.STEP) else Action(kind, chunk, micro_batch)
    assert parse_action(action.text()) == action
    assert parse_action(action.text(with_chunk=False), own_chunk=chunk) == action


@pytest.mark.parametrize("text", ["", "F", "X3", "F3", "F3/", "f3/1", "F-1/0", "STEP3", "SEND3/1", "F3/1/2", "F3/1 "])
def test_what_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(ScheduleInvalid, match="is no action; write a kind"):
        parse_action(text)


def test_a_schedule_as_csv_is_a_row_a_worker() -> None:
    assert schedule_to_csv(build_schedule("1f1b", (1, 1), 2)) == CSV


@settings(max_examples=40)
@given(name=st.sampled_from(SCHEDULE_NAMES), width=st.integers(1, 3), stages=st.integers(1, 4), micro_batches=st.integers(1, 9),
       chunks=st.integers(1, 3), bare=st.booleans())
def test_a_schedule_comes_back_from_csv_as_it_was(name: str, width: int, stages: int, micro_batches: int, chunks: int, bare: bool) -> None:
    interleaved = name == "interleaved"
    replicas = (width,) * stages if interleaved else (width, *range(1, stages))
    schedule = build_schedule(name, replicas, micro_batches, chunks_per_stage=chunks if interleaved else 1)
    schedule = without_transfers(schedule) if bare else schedule
    assert schedule_from_csv(schedule_to_csv(schedule)) == schedule


def test_spaces_empty_cells_and_empty_rows_of_a_spreadsheet_do_no_harm() -> None:
    padded = CSV.replace("\n", ",,\n\n").replace(",F1,", ", F1 ,,")
    assert schedule_from_csv(padded) == build_schedule("1f1b", (1, 1), 2)


@pytest.mark.parametrize(("old", "new", "said"), [
    pytest.param(CSV, "", "the first row is 'missing'", id="nothing"),
    pytest.param("micro_batches=2", "2", "it should read schedule,NAME,micro_batches=NUMBER", id="another header"),
    pytest.param("1.0,", "one,", "row 3 begins with 'one'", id="no worker"),
    pytest.param("1.0,", "9.0,", "row 3 begins with '9.0'", id="a worker far away"),
    pytest.param("1.0,", "0.0,", "row 3: worker 0.0 has a row already", id="a worker twice"),
    pytest.param("0.0,", "1.1,", r"stages with \[0, 2\] replicas", id="no stage 0"),
    pytest.param("SEND_B0", "SENT_B0", "row 3, cell 5: 'SENT_B0' is no action", id="no action"),
    pytest.param(",F1,SEND_F1", "", "0.0 lacks F of micro-batch 1 of chunk 0", id="a forward pass missing"),
    pytest.param("B1,REDUCE", "REDUCE", "0.0 lacks B of micro-batch 1 of chunk 0", id="a backward pass missing"),
    pytest.param("RECV_B1,B1,", "RECV_B1,I1,", "0.0 lacks W of micro-batch 1 of chunk 0", id="half a backward pass"),
    pytest.param("RECV_B1,B1,", "RECV_B1,B1,W1,", "0.0 does both B and I or W of micro-batch 1", id="one and a half"),
    pytest.param("F0,SEND_F0,F1,SEND_F1,RECV_B0,B0", "RECV_B0,B0,F0,SEND_F0,F1,SEND_F1", "0.0 does micro-batch 0 of chunk 0 out of order",
                 id="backward before forward"),
    pytest.param("F0,SEND_F0,F1", "F0,F0,SEND_F0,F1", "0.0 does F0 2 times", id="a forward pass twice"),
    pytest.param("F0,SEND_F0,F1", "F0/1,F0,SEND_F0,F1", "0.0 does F0, which is 1.0's", id="another's work"),
    pytest.param("F0,SEND_F0,F1", "F0,SEND_F0,F7,F1", "0.0 does F7/0, but there are 2 chunks and 2 micro-batches", id="work that is none"),
    pytest.param("SEND_F0,", "", "0.0 lacks SEND_F0", id="a send missing"),
    pytest.param("F0,SEND_F0,", "F0,SEND_F0,SEND_B0,", "0.0 has SEND_B0, which no action needs", id="a send too many"),
    pytest.param("F0,SEND_F0,", "SEND_F0,F0,", "0.0 has SEND_F0 on the wrong side of its computation", id="a send too early"),
    pytest.param("RECV_B0,B0,", "B0,RECV_B0,", "0.0 has RECV_B0 on the wrong side of its computation", id="a receive too late"),
    pytest.param("REDUCE,STEP\n1", "STEP,REDUCE\n1", "0.0 does not end in REDUCE and STEP", id="the end the wrong way round"),
    pytest.param("num_chunks=2", "num_chunks=3", "3 chunks do not divide among 2 stages", id="chunks that do not divide"),
])
def test_a_file_that_is_no_schedule_is_refused_naming_what_is_wrong(old: str, new: str, said: str) -> None:
    assert CSV.count(old)
    with pytest.raises(ScheduleInvalid, match=said):
        schedule_from_csv(CSV.replace(old, new, 1))


def test_lists_of_other_workers_are_refused() -> None:
    schedule = build_schedule("1f1b", (1, 1), 2)
    with pytest.raises(ScheduleInvalid, match=r"lists for workers 0\.0, expected 0\.0, 1\.0"):
        check_schedule(replace(schedule, actions={Worker(0, 0): schedule.actions[Worker(0, 0)]}))


def test_many_findings_are_counted_not_listed() -> None:
    schedule = build_schedule("1f1b", (1, 1), 9)
    with pytest.raises(ScheduleInvalid, match=r", and \d+ more; correct the lists"):
        check_schedule(replace(schedule, actions=dict.fromkeys(schedule.workers, ())))


def traced(schedule: Schedule) -> list[dict[str, Any]]:
    plan = simulate(schedule, Costs.equal(schedule.num_chunks, forward_s=0.001, backward_s=0.002, hop_s=0.0005)).entries
    measured = {worker: tuple(TimedAction(entry.action, entry.start_s * 1.1, entry.end_s * 1.1) for entry in entries)
                for worker, entries in plan.items()}
    trace = json.loads(trace_json({"plan": plan, "measured": measured}))
    assert set(trace) == {"displayTimeUnit", "traceEvents"}
    return trace["traceEvents"]


def test_a_trace_has_a_process_a_timeline_a_named_thread_a_worker_and_a_slice_an_action() -> None:
    schedule = build_schedule("zero_bubble", (2, 1), 3)
    events = traced(schedule)
    assert {event["ph"] for event in events} == {"M", "X"}
    names = {(event["pid"], event["tid"]): event["args"] for event in events if event["name"] == "thread_name"}
    assert names == {(process, thread): {"name": f"stage {worker.stage} replica {worker.replica}"}
                     for process in (0, 1) for thread, worker in enumerate(schedule.workers)}
    assert [event["args"] for event in events if event["name"] == "process_name"] == [{"name": "plan"}, {"name": "measured"}]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 2 * sum(map(len, schedule.actions.values()))
    assert all({"name", "cat", "pid", "tid", "ts", "dur", "args"} <= event.keys() for event in slices)
    assert all(isinstance(event[key], float | int) and event[key] >= 0 for event in slices for key in ("ts", "dur"))
    first = next(event for event in slices if event["pid"] == 1)
    assert (first["name"], first["cat"], first["ts"], first["dur"]) == ("F0/0", "compute", 0, 1100)
    assert first["args"] == {"micro_batch": 0, "chunk": 0}


def test_slices_of_a_thread_do_not_overlap() -> None:
    slices = [event for event in traced(build_schedule("interleaved", (1, 1), 4, chunks_per_stage=2)) if event["ph"] == "X"]
    for track in {(event["pid"], event["tid"]) for event in slices}:
        spans = [(event["ts"], event["ts"] + event["dur"]) for event in slices if (event["pid"], event["tid"]) == track]
        assert all(later[0] >= earlier[1] - 0.002 for earlier, later in pairwise(spans))
