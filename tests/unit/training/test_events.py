"""The event stream: one line a record, merged over ranks and generations, half-written lines left for later."""

from __future__ import annotations

from pathlib import Path

from sparkring.pipelines.training.events.writer import EventTail, EventWriter, read_events


def test_records_of_all_ranks_and_generations_come_in_order(tmp_path: Path) -> None:
    for generation, rank in ((10, 0), (2, 1), (2, 0)):
        with EventWriter(str(tmp_path), generation=generation, rank=rank) as events:
            events.write("step", loss=0.5)
            events.write("end")
    seen = [(record["generation"], record["rank"], record["event"]) for record in read_events(str(tmp_path))]
    assert seen == [(2, 0, "step"), (2, 0, "end"), (2, 1, "step"), (2, 1, "end"), (10, 0, "step"), (10, 0, "end")]


def test_a_line_that_a_killed_rank_left_half_written_is_passed_over(tmp_path: Path) -> None:
    with EventWriter(str(tmp_path), generation=0, rank=0) as events:
        events.write("step", loss=0.5)
    with (tmp_path / "events/0-0.jsonl").open("a") as file:
        file.write('{"event":"st')
    assert [record["event"] for record in read_events(str(tmp_path))] == ["step"]


def test_a_tail_gives_each_record_once_as_it_is_completed(tmp_path: Path) -> None:
    tail = EventTail(str(tmp_path), generation=0, rank=0)
    assert tail.new_records() == []
    with EventWriter(str(tmp_path), generation=0, rank=0) as events:
        events.write("start")
        assert [record["event"] for record in tail.new_records()] == ["start"]
        assert tail.new_records() == []
        events.write("step", loss=0.25)
        assert [record["loss"] for record in tail.new_records()] == [0.25]
