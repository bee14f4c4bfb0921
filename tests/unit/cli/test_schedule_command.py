"""``sparkring schedule``: schedules drawn, compared, exported and read back, and a run's step as planned and as it went. No ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from harness.closed_forms import pipeline_bubble
from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config
from sparkring.pipelines.parallel.schedules.files import schedule_from_csv
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from tests.support.configs import MINIMAL, write
from tests.support.report_samples import sample_config, sample_events, write_events
from tests.support.runs import begin_run

if TYPE_CHECKING:
    from tests.support.command_line import Run

pytest_plugins = ["tests.support.command_line"]

STUCK = """\
schedule,mine,micro_batches=2,num_chunks=2
0.0,F0,SEND_F0,RECV_B0,B0,F1,SEND_F1,RECV_B1,B1,REDUCE,STEP
1.0,RECV_F0,F0,RECV_F1,F1,B0,SEND_B0,B1,SEND_B1,REDUCE,STEP
"""


@pytest.fixture
def staged_run(tmp_path: Path) -> Config:
    """A config whose run has recorded a step of two stages."""
    config = sample_config(tmp_path / "workspace")
    write_events(config, sample_events(ranks=2, epochs=1, steps=3, staged=True))
    return config


@pytest.fixture
def staged_file(staged_run: Config, tmp_path: Path) -> str:
    return write(tmp_path, "staged.yaml", MINIMAL | {"workspace": staged_run.workspace})


def test_a_schedule_is_drawn_with_its_bubble_and_what_each_stage_holds(run: Run) -> None:
    code, out, err = run("schedule", "1f1b", "--stages", "2", "--micro-batches", "3")
    assert (code, err) == (0, "")
    assert out == dedent("""\
        1f1b over 2 stages, 3 micro-batches; F 10 ms and B 20 ms per stage, messages take no time

        0: F0 F1 .. .. B0 == F2 B1 == .. B2 ==
        1: .. F0 B0 == F1 B1 == F2 B2 == .. ..

        F forward, B backward (micro-batch); .. waits, == continues; a column is 10 ms

        plan 120 ms, 25.0% idle
        worker  idle (plan)  micro-batches held at most
           0.0        25.0%                           2
           1.0        25.0%                           1
        """)


def test_without_a_name_all_schedules_stand_side_by_side(run: Run) -> None:
    _, out, _ = run("schedule", "--stages", "4", "--micro-batches", "16", "--json")
    found = {each["schedule"]: each for each in json.loads(out)}
    assert list(found) == ["gpipe", "1f1b", "interleaved", "zero_bubble"]
    assert {name: found[name]["idle"]["plan"] for name in ("gpipe", "1f1b", "interleaved")} == pytest.approx({
        "gpipe": pipeline_bubble(4, 16), "1f1b": pipeline_bubble(4, 16), "interleaved": pipeline_bubble(4, 16, chunks_per_stage=2)})
    assert [load["in_flight"] for load in found["1f1b"]["workers"]] == [4, 3, 2, 1]
    text = run("schedule", "--stages", "4", "--micro-batches", "16")[1]
    assert [line.split()[:5] for line in text.splitlines() if line.startswith("1f1b")] == [["1f1b", "570", "ms", "15.8%", "4"]]
    assert "interleaved" not in run("schedule", "--stages", "2,1")[1], "which needs equal replicas"


def test_a_message_that_takes_time_makes_the_bubble_larger(run: Run) -> None:
    quick, slow = (json.loads(run("schedule", "gpipe", "--stages", "2", "--times", f"10,20,{message}", "--json")[1]) for message in (0, 7))
    assert slow["seconds"]["plan"] - quick["seconds"]["plan"] == pytest.approx(2 * 0.007)
    assert slow["idle"]["plan"] > quick["idle"]["plan"]


def test_lists_go_out_as_csv_and_come_back_as_they_were(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "mine.csv"
    code, out, _ = run("schedule", "zero_bubble", "--stages", "2,1", "--micro-batches", "4", "--out", str(file))
    assert code == 0
    assert out.endswith(f"written to {file}\n")
    assert ".." not in out.replace(str(file), ""), "no drawing where it went into a file"
    assert schedule_from_csv(file.read_text(encoding="utf-8")) == build_schedule("zero_bubble", (2, 1), 4)
    again = run("schedule", str(file))[1]
    assert again == run("schedule", "zero_bubble", "--stages", "2,1", "--micro-batches", "4")[1]


@pytest.mark.parametrize(("spoil", "said"), [
    pytest.param(lambda _: STUCK, "worker 0.0 at RECV_B0 waits for", id="lists that wait for each other"),
    pytest.param(lambda text: text.replace(",B1", "", 1), "lacks B of micro-batch 1", id="a pass missing"),
    pytest.param(lambda text: text.replace("F0", "G0", 1), "row 2, cell 2: 'G0' is no action", id="a word that is none"),
])
def test_lists_that_are_no_schedule_are_refused_in_one_line(run: Run, tmp_path: Path, spoil: Callable[[str], str], said: str) -> None:
    file = tmp_path / "mine.csv"
    run("schedule", "1f1b", "--stages", "2", "--out", str(file))
    assert run("schedule", str(file))[0] == 0, "the control"
    file.write_text(spoil(file.read_text(encoding="utf-8")), encoding="utf-8")
    code, out, err = run("schedule", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    if "waits" in said:
        assert "1.0 at RECV_F1" in err, "both ranks' next actions"


def test_of_a_run_plan_and_measurement_are_drawn_one_above_the_other(run: Run, staged_file: str) -> None:
    code, out, _ = run("schedule", staged_file)
    assert code == 0
    assert out.startswith("step 2 of epoch 1, 1f1b over 2 stages, 8 micro-batches\n\nplan, ")
    plan, measured = out.index("plan, "), out.index("\nmeasured, ")
    assert 0 < plan < measured
    rows = [line for line in out.splitlines() if line.startswith(("0: ", "1: "))]
    assert len(rows) == 4
    assert all(row.count("F") == row.count("B") == 8 for row in rows[:2])
    assert all("F0" in row and "B7" in row for row in rows[2:])
    assert "idle (plan)  idle (measured)  micro-batches held at most" in out
    result = json.loads(run("schedule", staged_file, "--json")[1])
    assert result["seconds"]["measured"] > result["seconds"]["plan"] > 0, "messages took 2 ms in it, and none in the plan"
    assert [load["in_flight"] for load in result["workers"]] == [2, 1]


def test_of_a_run_a_trace_has_two_processes_and_a_picture_two_panels(run: Run, staged_file: str, tmp_path: Path) -> None:
    trace, picture = tmp_path / "step.json", tmp_path / "step.svg"
    assert run("schedule", staged_file, "--out", str(trace))[0] == run("schedule", staged_file, "--out", str(picture))[0] == 0
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["plan", "measured"]
    root = ET.fromstring(picture.read_text(encoding="utf-8"))
    assert root.tag.endswith("svg")
    heads = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert [head.partition(",")[0] for head in heads if head.startswith(("plan, ", "measured, "))] == ["plan", "measured"]


def test_of_a_plan_a_trace_has_one_process_and_a_text_file_the_drawing(run: Run, tmp_path: Path) -> None:
    trace, text = tmp_path / "plan.json", tmp_path / "plan.txt"
    for file in (trace, text):
        assert run("schedule", "gpipe", "--stages", "2", "--micro-batches", "2", "--out", str(file))[0] == 0
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["plan"]
    assert text.read_text(encoding="utf-8").startswith("0: F0 F1 .. .. .. B0 == B1 ==\n1: .. F0 F1 B0 == B1 == .. ..\n")


@pytest.mark.parametrize(("arguments", "complaint"), [
    pytest.param(("1fb1",), "did you mean '1f1b'?", id="a name misspelt"),
    pytest.param(("1f1b", "--stages", "0"), "stages have [] replicas", id="no stage"),
    pytest.param(("1f1b", "--stages", "two"), "--stages two is neither a number", id="stages in words"),
    pytest.param(("interleaved", "--stages", "2,1"), "need equally many replicas", id="a shape that it does not allow"),
    pytest.param(("gpipe", "--chunks-per-stage", "2"), "only interleaved has several", id="chunks without interleaving"),
    pytest.param(("1f1b", "--times", "10,20"), "--times 10,20 is not milliseconds", id="a time missing"),
    pytest.param(("1f1b", "--times", "0,20,0"), "both above 0", id="a pass of no time"),
    pytest.param(("1f1b", "--out", "x.png"), "ends in .csv, .json, .svg, .txt", id="an ending that is none"),
    pytest.param(("1f1b", "--micro-batches", "500", "--out", "x.svg"), "too large for a picture", id="a picture too large"),
    pytest.param(("--out", "x.csv"), "name the one to write", id="which of all to write"),
    pytest.param(("1f1b", "--set", "train.epochs=2"), "no config is read", id="a change of no config"),
    pytest.param(("nowhere.csv",), "nowhere.csv cannot be read", id="no file"),
    pytest.param(("nowhere.yaml",), "no config named nowhere.yaml", id="no config"),
])
def test_what_cannot_be_drawn_is_refused_in_one_line(run: Run, arguments: tuple[str, ...], complaint: str, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("schedule", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert complaint in err
    assert not list(tmp_path.iterdir())


def test_a_run_has_its_own_shape_and_must_have_stages(run: Run, staged_file: str, tmp_path: Path) -> None:
    code, _, err = run("schedule", staged_file, "--stages", "2")
    assert (code, err.count("\n")) == (2, 1)
    assert "--stages cannot be given here, since the run of" in err
    elsewhere = f"workspace={tmp_path / 'elsewhere'}"
    code, _, err = run("schedule", staged_file, "--set", elsewhere)
    assert (code, err.count("\n")) == (2, 1)
    assert "elsewhere/runs holds no run yet; run `sparkring train` with this config first" in err
    begin_run(load_config(staged_file, [elsewhere]))
    code, _, err = run("schedule", staged_file, "--set", elsewhere)
    assert (code, err.count("\n")) == (2, 1)
    assert "recorded no step in stages; train with several stages" in err


def test_a_step_that_cannot_be_read_is_told_in_one_line(run: Run, staged_file: str, staged_run: Config) -> None:
    file = Path(staged_run.run_url) / "events" / "0-1.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace('"start_us":[0', '"start_us":["soon"'), encoding="utf-8")
    code, out, err = run("schedule", staged_file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "a step that cannot be read (TypeError" in err


def test_its_help_shows_each_way_to_call_it(run: Run) -> None:
    code, out, _ = run("schedule", "--help")
    assert code == 0
    shown = out.partition("Examples:")[2]
    assert all(f"sparkring schedule {what}" in shown for what in ("--stages", "1f1b", "mine.csv", "local/python-text"))
