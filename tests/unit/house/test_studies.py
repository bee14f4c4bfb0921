"""The studies: the stored pages and pictures are what the stored numbers make, and what a study computes by itself is right."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies import layouts, scaling, staleness
from benchmarks.studies.catalogue import STUDIES
from benchmarks.studies.markdown import prose, table
from benchmarks.studies.runs import Run
from benchmarks.studies.study import files_of, stored
from sparkring.pipelines.parallel.planner.cost_model import BlockProfile, Cluster, Line, ModelProfile
from sparkring.pipelines.parallel.planner.enumerate import Candidate
from sparkring.pipelines.parallel.planner.prediction import predict

FOLDER = Path(__file__).resolve().parents[3] / "docs/studies"
STORED = [STUDIES[path.stem] for path in sorted(FOLDER.glob("*.json"))]
by_study = pytest.mark.parametrize("study", STORED, ids=lambda study: study.name)


@by_study
def test_stored_numbers_make_exactly_the_stored_page_and_pictures(study: Any) -> None:
    document = stored(study, FOLDER)
    for name, text in files_of(study, document).items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"run `python -m benchmarks.studies {study.name} --redraw`"
    assert not document["quick"]


def test_every_study_has_a_page_and_the_folder_holds_nothing_else() -> None:
    assert {study.name for study in STORED} == set(STUDIES)
    made = {f"{study.name}.json" for study in STORED} | {name for study in STORED for name in files_of(study, stored(study, FOLDER))}
    assert {path.name for path in FOLDER.iterdir()} == made


def _doubled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _doubled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_doubled(one) for one in value]
    return 2 * value if isinstance(value, int | float) and not isinstance(value, bool) else value


@by_study
def test_other_numbers_make_another_page_with_other_pictures(study: Any) -> None:
    document = stored(study, FOLDER)
    changed = copy.deepcopy(document) | {"numbers": _doubled(document["numbers"])}
    before, after = files_of(study, document), files_of(study, changed)
    assert {name for name in before if before[name] == after[name]} == set()


def test_the_page_of_a_quick_run_says_that_its_numbers_mean_nothing() -> None:
    document = stored(STORED[0], FOLDER)
    name = f"{STORED[0].name}.md"
    assert "mean nothing" in files_of(STORED[0], {**document, "quick": True})[name]
    assert "mean nothing" not in files_of(STORED[0], document)[name]


def test_paragraphs_are_wrapped_and_tables_are_markdown() -> None:
    assert prose("one   two", "three") == "one two three"
    assert max(map(len, prose("word " * 100).splitlines())) <= 120
    assert table([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]) == "| a | b |\n|---|---|\n| 1 | x |\n| 2 | y |"


def test_stalenesses_are_counted_over_all_runs_and_none_where_no_update_can_be_stale() -> None:
    def run(*stalenesses: int) -> Run:
        return Run("", [{"event": "step", "staleness": each} for each in stalenesses] + [{"event": "epoch"}], [])

    assert staleness._histogram([run(0, 2), run(2)]) == {0: 1, 1: 0, 2: 2}
    assert staleness._histogram([Run("", [{"event": "step"}], [])]) == {}


def test_the_seconds_of_a_step_are_those_of_its_slowest_rank() -> None:
    def record(step: int, data_s: float, compute_s: float) -> dict[str, Any]:
        return {"event": "step", "epoch": 0, "step": step, "data_s": data_s, "compute_s": compute_s, "comm_s": 1.0}

    assert Run("", [record(0, 1.0, 2.0), record(1, 0.0, 1.0), record(0, 0.0, 4.0)], []).step_seconds() == [5.0, 2.0]


def test_operations_of_a_step_of_bert_large_are_six_a_multiplication() -> None:
    layers = 24 * (12 * 1024 ** 2 + 13 * 1024 + 2 * 512 * 1024)
    assert scaling._bert_operations() == pytest.approx(6 * 256 * 512 * (layers + 1024 ** 2))


def test_bytes_of_a_step_are_those_of_rings_and_of_borders_in_both_directions() -> None:
    block = BlockProfile(name="", forward=Line(0.0, 1.0), backward=Line(0.0, 2.0), parameter_bytes=100.0, border_bytes=3.0)
    model = ModelProfile(blocks=(block, block))

    def sent(*replicas: int) -> tuple[float, float]:
        planned = predict(model, Cluster(), Candidate(replicas=replicas, micro_batches=4), batch_rows=4)
        return tuple(layouts._sent(model, planned).values())  # type: ignore[return-value]

    assert sent(4) == (4 * 2 * 3 / 4 * 200, 0.0)
    assert sent(2, 2) == (2 * 2 * 100, 2 * 3 * layouts.BATCH_ROWS), "of each stage two ranks send 2 x 1/2 of its 100 bytes"
    assert sent(1, 1) == (0, 2 * 3 * layouts.BATCH_ROWS)
