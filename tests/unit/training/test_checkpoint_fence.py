"""A life of the ring that is over commits nothing over a later one's checkpoints, however late it comes and however long it hung."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkring.errors import CheckpointDamaged, Superseded
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.fence import fence_name, fences_of, later, void_by
from sparkring.pipelines.training.checkpoints.files import CheckpointFiles
from sparkring.pipelines.training.checkpoints.names import DATA, FENCES
from sparkring.pipelines.training.checkpoints.retention import retain
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.spark_jobs.run.folder import RunFolder
from sparkring.spark_jobs.stored.audit import _latest_position
from sparkring.spark_jobs.stored.checkpoints import list_checkpoints


def _document(checkpoints: Checkpoints, steps: int, *, generation: int, loss: float | None = None) -> CheckpointDocument:
    part = checkpoints.put_part(f"{steps} of {generation}".encode(), steps=steps, rank=0, generation=generation)
    return CheckpointDocument(position=Position(step=steps, steps_done=steps), generation=generation, content_id="c", dataset_version=1,
                              seed=1, lanes=24, batch_rows=8, code_version="test", parts=(part,),
                              validation=None if loss is None else {"loss": loss})


def _latest(checkpoints: Checkpoints) -> bytes:
    found, _ = checkpoints.latest()
    assert found is not None
    return found.state[0]


class Blind(CheckpointFiles):
    """Of a rank that hangs between its look for fences and its commit: it knows none."""

    def fences(self) -> frozenset[tuple[int, int]]:
        return frozenset()


def _hanging(run: Path) -> Checkpoints:
    checkpoints = Checkpoints(str(run))
    checkpoints._files = Blind(open_store(str(run)))
    return checkpoints


@pytest.fixture
def gone_on(tmp_path: Path) -> Checkpoints:
    """Generation 3 got to 100 steps, and generation 4 from there to 130."""
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.fence(3, steps=0)
    checkpoints.commit(_document(checkpoints, 100, generation=3))
    checkpoints.fence(4, steps=100)
    checkpoints.commit(_document(checkpoints, 130, generation=4))
    return checkpoints


@pytest.mark.parametrize("steps", [110, 130, 150], ids=["before the newest", "of as many steps", "beyond it"])
def test_a_late_commit_is_refused_and_changes_nothing(gone_on: Checkpoints, steps: int) -> None:
    late = _document(gone_on, steps, generation=3)
    with pytest.raises(Superseded, match="generation 3 is over: generation 4 of the run has begun"):
        gone_on.commit(late)
    assert (gone_on.numbers(), _latest(gone_on)) == ([100, 130], b"130 of 4")


@pytest.mark.parametrize("steps", [110, 150], ids=["before the newest", "beyond it"])
def test_one_that_was_not_refused_in_time_does_not_count_and_deletes_nothing(gone_on: Checkpoints, tmp_path: Path, steps: int) -> None:
    hanging = _hanging(tmp_path)
    hanging.commit(_document(hanging, steps, generation=3, loss=0.1))
    assert gone_on.numbers() == sorted([100, 130, steps])
    assert _latest(gone_on) == b"130 of 4"
    assert gone_on.best() is None
    with pytest.raises(CheckpointDamaged, match=f"{steps}-3.json does not count: .* late, after generation 4 had resumed"):
        gone_on.read(steps)
    assert [bool(each.damaged) for each in list_checkpoints(str(tmp_path)) if each.steps == steps] == [True]
    assert _latest_position(gone_on) == Position(step=130, steps_done=130)  # for the audit, too
    assert _latest(hanging) == (b"130 of 4" if steps == 110 else b"150 of 3")  # the control: without a fence it would
    gone_on.retain(3)
    assert gone_on.numbers() == [100, 130]
    gone_on.commit(_document(gone_on, 140, generation=4))
    assert _latest(gone_on) == b"140 of 4"


def test_one_that_was_not_refused_in_time_does_not_take_the_place_of_a_later_life_s(gone_on: Checkpoints, tmp_path: Path) -> None:
    hanging = _hanging(tmp_path)
    hanging.commit(_document(hanging, 130, generation=3))
    assert (gone_on.numbers(), _latest(gone_on)) == ([100, 130], b"130 of 4")
    gone_on.fence(5, steps=100)  # the control: what an earlier life left there, and counts no more, gives way
    gone_on.commit(_document(gone_on, 130, generation=5))
    assert (gone_on.numbers(), _latest(gone_on)) == ([100, 130], b"130 of 5")


def test_a_life_that_is_over_and_hung_while_it_tidied_deletes_nothing_of_a_later_one(tmp_path: Path) -> None:
    """Generation 1 lists files; generation 2 goes on from 200, where 300 was damaged, and writes 300 again; generation 1 wakes."""
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.fence(1, steps=0)
    for steps in (200, 300):
        checkpoints.commit(_document(checkpoints, steps, generation=1))

    class Woken(CheckpointFiles):
        """Hangs between its look for fences and its listing of documents."""

        hung = False

        def fences(self) -> frozenset[tuple[int, int]]:
            fences = super().fences()
            if not Woken.hung:
                Woken.hung = True
                checkpoints.fence(2, steps=200)
                checkpoints.commit(_document(checkpoints, 300, generation=2))
            return fences

    retain(Woken(open_store(str(tmp_path))), 1, generation=1)
    assert _latest(checkpoints) == b"300 of 2"
    assert checkpoints.numbers() == [200, 300]
    checkpoints.retain(1, generation=1)  # awake, it knows
    assert checkpoints.numbers() == [200, 300]
    checkpoints.retain(1, generation=2)
    assert (checkpoints.numbers(), _latest(checkpoints)) == ([300], b"300 of 2")
    assert len(list((tmp_path / DATA).iterdir())) == 1


def test_control_what_a_life_overtakes_is_deleted_where_it_is_of_an_earlier_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    for steps, generation in ((100, 1), (200, 1), (150, 2)):
        checkpoints.commit(_document(checkpoints, steps, generation=generation))
    assert checkpoints.numbers() == [100, 150]


def test_fences_are_told_by_their_names(tmp_path: Path) -> None:
    fences = fences_of([fence_name(4, 100), fence_name(7, 30), "4.json", "x-1.json", "5-6.json.part"])
    assert fences == {(4, 100), (7, 30)}
    assert [later(fences, generation) for generation in (3, 4, 7)] == [7, 7, None]
    assert [void_by(fences, generation=3, steps=steps) for steps in (30, 31, 100, 101)] == [None, (7, 30), (7, 30), (4, 100)]
    assert void_by(fences, generation=7, steps=1000) is None
    Checkpoints(str(tmp_path)).fence(2, steps=5)
    assert [path.name for path in (tmp_path / FENCES).iterdir()] == ["2-5.json"]


def test_no_two_lives_have_one_number_though_the_first_left_no_event(tmp_path: Path) -> None:
    folder, url = RunFolder(str(tmp_path)), str(tmp_path)
    assert folder._next_generation() == 0
    (tmp_path / "events").mkdir()
    (tmp_path / "events/1-0.jsonl").touch()
    assert folder._next_generation() == 2
    Checkpoints(url).fence(2, steps=5)  # and then it died, before its events were in storage
    assert folder._next_generation() == 3


def test_two_drivers_that_begin_a_generation_at_once_do_not_have_the_same(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(lambda _: folder.claim_generation(), range(8)))
    assert sorted(claimed) == list(range(8))
    assert folder._next_generation() == 0  # the control: by what ranks leave behind, all would have been the first
    assert folder.claim_generation(at_least=20) == 20
