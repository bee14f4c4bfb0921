"""Where lines of events lie: appended on a disk, in segments elsewhere; and what becomes of them where storage fails."""

from __future__ import annotations

import json
import resource
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.events.lines import AppendedLines, LineTail, ShippedLines, read_segments
from sparkring.pipelines.training.events.sealed import SealedEvents
from sparkring.pipelines.training.events.writer import EventTail, EventWriter, event_files, read_events
from tests.support import seams
from tests.support.away_store import AwayStore

NAME = "events/0-1.jsonl"


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> str:
    """A run folder that cannot be appended to, whose segments are small, and which is written to only when asked."""
    monkeypatch.setattr(seams.LINES_SEGMENT_BYTES, 1000)
    monkeypatch.setattr(seams.LINES_SHIP_S, 1000.0)
    return f"memory://{uuid.uuid4().hex}/run"


@contextmanager
def _full_disk(limit: int) -> Iterator[None]:
    """No file of this process may grow beyond ``limit`` bytes; the kernel writes what still fits and refuses the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_events_in_a_store_that_cannot_append_are_read_and_proved_like_those_on_a_disk(remote: str, tmp_path: Path) -> None:
    for url in (remote, str(tmp_path)):
        with EventWriter(url, generation=0, rank=1) as events:
            for step in range(50):
                events.write("step", epoch=0, step=step)
    assert len(open_store(remote).names("events")) > 3
    assert event_files(remote) == event_files(str(tmp_path)) == ["0-1.jsonl"]
    assert [record["step"] for record in read_events(remote)] == list(range(50))
    assert SealedEvents(open_store(remote), "0-1.jsonl").records == 50
    store = open_store(remote)
    segment = store.read("events/0-1.2.jsonl")
    store.put("events/0-1.2.jsonl", segment.replace(b'"step":', b'"step": ', 1))
    with pytest.raises(ValueError, match=r"0-1\.2\.jsonl line 1 does not have the hash"):
        SealedEvents(store, "0-1.jsonl")
    store.delete("events/0-1.2.jsonl")  # what comes after it is not seen: the run's receipts show that steps are missing
    assert SealedEvents(store, "0-1.jsonl").records < 50


def test_what_is_settled_is_in_storage_and_a_tail_gives_each_record_once(remote: str) -> None:
    tail, seen = EventTail(remote, generation=0, rank=0), list[int]()
    with EventWriter(remote, generation=0, rank=0) as events:
        for step in range(40):
            events.write("step", epoch=0, step=step)
            if step % 7 == 0:
                assert len(seen) + len(tail.new_records()) == len(seen)  # the control: nothing was shipped yet
                events.settle()
                seen += [record["step"] for record in tail.new_records()]
                assert seen == list(range(step + 1))
    assert seen + [record["step"] for record in tail.new_records()] == list(range(40))


def test_a_tail_goes_on_with_the_generation_that_a_ring_begins_by_itself(tmp_path: Path) -> None:
    tail = EventTail(str(tmp_path), generation=3, rank=0)
    with EventWriter(str(tmp_path), generation=3, rank=0) as events:
        events.write("step", step=0)
        events.write("rollback", text="")
        events.next_generation()
        assert [record["event"] for record in tail.new_records()] == ["step", "rollback"]
        events.write("start")
        assert [(record["event"], record["generation"]) for record in tail.new_records()] == [("start", 4)]
    assert event_files(str(tmp_path)) == ["3-0.jsonl", "4-0.jsonl"]
    assert SealedEvents(open_store(str(tmp_path)), "4-0.jsonl").start is not None


def test_lines_wait_while_storage_is_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.LINES_SEGMENT_BYTES, 20)
    storage = AwayStore(tmp_path)
    lines = ShippedLines(storage, NAME)
    storage.away = True
    for number in range(10):
        lines.append(json.dumps({"number": number}))
    with pytest.raises(OSError, match="out of reach"):
        lines.settle()
    storage.away = False
    lines.settle()
    lines.append('{"number":10}')
    lines.close()
    found = b"".join(data for _, data in read_segments(storage, NAME)).split()
    assert len(LineTail(storage, NAME).new_lines().splitlines()) == 11
    assert b"".join(found).count(b"number") == 11
    assert all(len(data) < 60 for _, data in read_segments(storage, NAME))


@pytest.mark.parametrize(("write_once", "puts"), [
    pytest.param(True, [NAME, "events/0-1.1.jsonl", "events/0-1.2.jsonl"], id="each shipment in a segment of its own"),
    pytest.param(False, [NAME, NAME, NAME], id="the control: the last segment again")])
def test_where_a_killed_writer_leaves_a_part_no_segment_is_written_twice(tmp_path: Path, write_once: bool, puts: list[str]) -> None:
    done = list[str]()

    class Noting(LocalStore):
        def put(self, name: str, data: bytes) -> None:
            done.append(name)
            super().put(name, data)

    lines, tail = ShippedLines(Noting(tmp_path), NAME, write_once=write_once), LineTail(LocalStore(tmp_path), NAME)
    for number in range(3):
        lines.append(f'{{"number":{number}}}')
        lines.settle()
        lines.settle()  # nothing new, so nothing is stored
        assert tail.new_lines() == f'{{"number":{number}}}\n'.encode()
    lines.close()
    assert done == puts


def test_a_full_disk_costs_no_line_once_there_is_room_again(tmp_path: Path) -> None:
    path = tmp_path / NAME
    lines = AppendedLines(path)
    with _full_disk(100):
        for number in range(20):
            lines.append(json.dumps({"number": number}))  # nobody is kept from working
        with pytest.raises(OSError, match="too large"):
            lines.settle()
    assert path.stat().st_size == 100  # the control: the disk was full, and in the middle of a line
    lines.append('{"number": 20}')
    lines.settle()
    lines.close()
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == list(range(21))
