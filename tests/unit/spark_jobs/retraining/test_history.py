"""The records of retrainings: one at a time, gone on with until it has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkring.errors import CommitConflict
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.spark_jobs.retraining.history import Begun, Ended, History, now
from tests.support import seams


def _ended(begun: Begun) -> Ended:
    return Ended(number=begun.number, outcome="kept", reason="r", dataset_version=1, rows=9, champion=None, candidate=1, run="v1-a",
                 held_out_rows=3, champion_metrics={}, candidate_metrics={"auc": 0.7}, gain=None, gain_low=None, gain_high=None,
                 p_value=None, began_at=begun.at, at=now())


def test_what_was_begun_is_unfinished_until_it_has_ended(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    assert (history.unfinished(), history.ended()) == (None, [])
    first = history.begin(dataset_version=1, rows=9, champion=None, reasons=("no retraining yet",))
    assert History(str(tmp_path)).unfinished() == first
    ended = _ended(first)
    history.end(ended)
    assert (history.unfinished(), history.ended()) == (None, [ended])
    assert history.begin(dataset_version=2, rows=12, champion=1, reasons=("3 new rows",)).number == 2


def test_one_that_is_given_up_is_over_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    history.give_up(history.begin(dataset_version=1, rows=9, champion=1, reasons=("r",)), reason="its champion is gone")
    assert (history.unfinished(), history.begun(), history.ended()) == (None, [], [])
    assert history.begin(dataset_version=2, rows=12, champion=2, reasons=("r",)).number == 2


def test_of_two_that_begin_at_once_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = History(str(tmp_path)), History(str(tmp_path))
    commit = LocalStore.put_if_absent

    def beaten(store: LocalStore, name: str, content: bytes) -> None:
        monkeypatch.setattr(seams.LOCAL_STORE_PUT_IF_ABSENT, commit)
        theirs.begin(dataset_version=1, rows=9, champion=None, reasons=("theirs",))
        commit(store, name, content)

    monkeypatch.setattr(seams.LOCAL_STORE_PUT_IF_ABSENT, beaten)
    with pytest.raises(CommitConflict, match=r"another process began a retraining in .* just now; nothing needs to be done"):
        mine.begin(dataset_version=1, rows=9, champion=None, reasons=("mine",))
    unfinished = mine.unfinished()
    assert unfinished is not None
    assert unfinished.reasons == ("theirs",)
