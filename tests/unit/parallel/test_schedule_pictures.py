"""Schedules as pictures: with letters for a terminal, as SVG for a page or a file, planned and measured."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from textwrap import dedent
from xml.etree import ElementTree as ET

import pytest

from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Worker, parse_action
from sparkring.pipelines.parallel.schedules.simulator import TimedAction, WorkerTimings, simulate
from sparkring.spark_jobs.reporting.charts.canvas import Picture
from sparkring.spark_jobs.reporting.charts.palette import SHADES
from sparkring.spark_jobs.reporting.charts.schedule import schedule_picture
from sparkring.spark_jobs.reporting.charts.svg import as_file
from sparkring.spark_jobs.reporting.schedule_text import draw_entries, draw_schedule

SVG = "{http://www.w3.org/2000/svg}"


def entries(*lists: str) -> WorkerTimings:
    """``"F0 0 1, B0 2 4"`` a stage: action, start and end in seconds."""
    found = {}
    for stage, words in enumerate(lists):
        parts = [part.split() for part in words.split(",")]
        found[Worker(stage, 0)] = tuple(TimedAction(parse_action(text, own_chunk=stage), float(start), float(end))
                                        for text, start, end in parts)
    return found


def test_a_long_backward_pass_is_drawn_going_on() -> None:
    assert draw_schedule(build_schedule("1f1b", (1, 1), 3), backward_ticks=2) == dedent("""
        0: F0 F1 .. .. B0 == F2 B1 == .. B2 ==
        1: .. F0 B0 == F1 B1 == F2 B2 == .. ..
        """).strip()


def test_a_picture_broader_than_the_terminal_goes_on_below() -> None:
    assert draw_schedule(build_schedule("gpipe", (1, 1), 3), width=17) == dedent("""
        0: F0 F1 F2 .. ..
        1: .. F0 F1 F2 B0

        0: B0 B1 B2
        1: B1 B2 ..
        """).strip()


def test_what_was_measured_is_drawn_by_what_fills_most_of_a_tick() -> None:
    schedule = build_schedule("1f1b", (1, 1), 1)
    measured = entries("F0 0 1.1, SEND_F0 1.1 1.2, RECV_B0 1.2 4.1, B0 4.1 5.9", "F0 1.3 2.2, B0 2.2 3.9")
    assert draw_entries(schedule, measured, tick_s=1.0) == dedent("""
        0: F0 .. .. .. B0 ==
        1: .. F0 B0 == .. ..
        """).strip()
    assert draw_entries(schedule, measured, tick_s=0.5).splitlines()[0] == "0: F0 == .. .. .. .. .. .. B0 == == =="


def test_a_worker_without_records_stays_idle() -> None:
    schedule = build_schedule("1f1b", (1, 1), 1)
    assert draw_entries(schedule, entries("F0 0 1, B0 1 2"), tick_s=1.0) == "0: F0 B0\n1: .. .."
    plan = simulate(schedule, Costs.equal(2)).entries
    assert "measured, 2" in schedule_picture(schedule, plan=plan, measured=entries("F0 0 1, B0 1 2")).svg


@cache
def picture(name: str = "1f1b", micro_batches: int = 4, *, with_measured: bool = True) -> Picture:
    schedule = build_schedule(name, (2, 1), micro_batches)
    costs = replace(Costs.equal(2, forward_s=0.01, backward_s=0.02, hop_s=0.001), reduce_s=(0.005, 0.005), step_s=(0.002, 0.002))
    slower = replace(costs, forward_s=(0.012, 0.011))
    measured = simulate(schedule, slower).entries if with_measured else None
    return schedule_picture(schedule, plan=simulate(schedule, costs).entries, measured=measured)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("text")]


def test_plan_and_measurement_stand_one_above_the_other_on_one_axis() -> None:
    drawn = texts(picture().svg)
    plan, measured = (next(place for place, text in enumerate(drawn) if text.startswith(f"{title}, ")) for title in ("plan", "measured"))
    assert drawn.count("milliseconds") == 1
    assert [drawn.count(label) for label in ("stage 0.0", "stage 0.1", "stage 1.0")] == [2, 2, 2]
    assert plan != measured
    assert not [text for text in texts(picture(with_measured=False).svg) if text.startswith("measured")]


def test_every_pass_has_a_cell_with_its_micro_batch() -> None:
    drawn = texts(picture(with_measured=False).svg)
    cells = [text for text in drawn if text in {"1", "3"}]  # the axis has even numbers
    assert len(cells) == 2 * 2 * 2


@pytest.mark.parametrize(("name", "meanings"), [
    pytest.param("1f1b", {"forward", "backward", "sum over replicas", "optimizer"}, id="1f1b"),
    pytest.param("zero_bubble", {"forward", "gradient of the input", "gradients of the weights", "sum over replicas", "optimizer"},
                 id="zero bubble"),
])
def test_the_legend_names_what_is_there_and_nothing_else(name: str, meanings: set[str]) -> None:
    known = {"forward", "backward", "gradient of the input", "gradients of the weights", "sum over replicas", "optimizer"}
    assert known & set(texts(picture(name).svg)) == meanings


def test_numbers_too_small_to_read_are_left_out() -> None:
    assert [text for text in texts(picture().svg) if text == "3"]
    assert not [text for text in texts(picture(micro_batches=60).svg) if text == "3"]


def test_it_says_how_long_and_how_idle_the_step_was() -> None:
    drawn = picture()
    assert re.match(r"Plan [\d.]+\sms, [\d.]+\s% idle; measured [\d.]+\sms, [\d.]+\s% idle\.", drawn.caption)
    assert "3 workers, 4 micro-batches" in drawn.svg


def test_a_file_of_its_own_has_all_colours_of_both_themes_and_asks_nothing_of_others() -> None:
    root = ET.fromstring(as_file(picture("zero_bubble").svg))
    assert root.tag == f"{SVG}svg"
    style = root.findtext(f"{SVG}style") or ""
    used = set(re.findall(r"var\(--([a-z-]+)\)", ET.tostring(root, encoding="unicode")))
    assert used <= {shade.variable for shade in SHADES}
    assert all(style.count(f"--{variable}:") == 2 for variable in used)
    targets = [value for element in root.iter() for key, value in element.attrib.items() if key.endswith("href")]
    assert all(target.startswith("#") for target in targets)
