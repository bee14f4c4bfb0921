"""The folders of scores read as one table: no row of a split twice, wherever a commit is ended; and names that scores need."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkring.errors import ConfigError
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.scoring.columns import predicted_columns, require_free_features, split_columns
from sparkring.spark_jobs.scoring.latest import Scores, commit_scores, draft_of, finish_commit, scores_of
from sparkring.spark_jobs.scoring.predict import ANSWERS
from tests.support.etl_tables import etl_config

CHANGES = ("put", "move", "delete")


class _Killed(Exception):
    """Stands for the end of the process."""


class _MortalStore(LocalStore):
    """A store whose process ends before its change number ``last``."""

    def __init__(self, root: Path, *, last: int) -> None:
        super().__init__(root)
        self.last = last

    def __getattribute__(self, name: str) -> Any:
        if name in CHANGES:
            self.last -= 1
            if self.last < 0:
                raise _Killed
        return super().__getattribute__(name)


def _draft(store: LocalStore, folder: str, split: str | None) -> Scores:
    """Write a draft of two files with the rows 0 to 3 of a split."""
    for part in range(2):
        path = store.root / draft_of(folder) / f"part-{part}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = [part * 2, part * 2 + 1]
        pq.write_table(pa.table({"row_id": ids, "split": pa.array([split] * 2, pa.string()), "folder": [folder] * 2}), path)
    return Scores(folder=folder, rows=4, split=split, weights_sha256="w", dataset_url="d", dataset_version=1, content_id="c",
                  created_at="2026-01-01T00:00:00Z")


def _rows(store: LocalStore) -> list[tuple[str | None, int, str]]:
    """Split, row id and folder of all that a reader of the scores' folder finds."""
    return sorted(((row["split"], row["row_id"], row["folder"]) for row in pq.read_table(store.root).to_pylist()), key=str)


def _of(split: str | None, folder: str) -> list[tuple[str | None, int, str]]:
    return [(split, number, folder) for number in range(4)]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Scores of two splits and of rows that a caller brought."""
    store = LocalStore(tmp_path)
    for folder, split in (("a0", "test"), ("b0", "validation"), ("c0", None)):
        commit_scores(store, _draft(store, folder, split))
    return store


def test_a_split_keeps_one_folder_whatever_was_scored_between(store: LocalStore) -> None:
    assert _rows(store) == sorted([*_of("test", "a0"), *_of("validation", "b0"), *_of(None, "c0")], key=str)
    commit_scores(store, _draft(store, "a1", "test"))
    commit_scores(store, _draft(store, "c1", None))
    assert _rows(store) == sorted([*_of("test", "a1"), *_of("validation", "b0"), *_of(None, "c0"), *_of(None, "c1")], key=str)
    assert [getattr(scores_of(store, split), "folder", None) for split in ("test", "validation", "train", None)] == ["a1", "b0", None, None]


def test_a_commit_that_is_killed_anywhere_shows_no_row_twice_and_the_next_one_finishes_it(store: LocalStore, tmp_path: Path) -> None:
    other = [*_of("validation", "b0"), *_of(None, "c0")]
    seen, taken, number = [], [], 0
    while True:
        folder, before = f"d{number}", _rows(store)
        mortal, made = _MortalStore(tmp_path, last=number), _draft(store, folder, "test")
        try:
            commit_scores(mortal, made)
            break
        except _Killed:
            ids = [(split, row) for split, row, found in _rows(store) if (split, row, found) not in other]
            assert len(ids) == len(set(ids))
            seen.append(len(ids))
        finish_commit(store)
        after = sorted([*_of("test", folder), *other], key=str)
        assert _rows(store) in (before, after)
        taken.append(_rows(store) == after)
        number += 1
    assert taken == sorted(taken)  # from the moment on at which the document names it
    assert set(taken) == {False, True}
    assert set(seen) == {4, 0, 2}  # the control: it was killed before, in and after the exchange


@pytest.mark.parametrize("task", ["binary", "multiclass", "next_token"])
def test_the_names_that_are_taken_are_those_of_the_predictions(task: Any) -> None:
    answered = set(ANSWERS[task].names)
    assert set(predicted_columns(task)) == answered | ({"prediction"} if task == "binary" else set())
    assert split_columns(task) == (*predicted_columns(task), "model", "dataset_version", "split")


@pytest.mark.parametrize(("task", "features", "refused"), [
    ("binary", {"numeric": ["Prediction"]}, True), ("multiclass", {"categorical": ["probabilities"]}, True),
    ("regression", {"hashed": [{"column": "prediction", "ids": 8}]}, True), ("regression", {"moments": [
        {"column": "prediction", "numbers": ["days"]}]}, True), ("binary", {"numeric": ["probabilities", "top_k"]}, False),
    ("regression", {"numeric": ["probability"]}, False)])
def test_a_feature_cannot_have_the_name_of_a_column_that_a_prediction_adds(
        tmp_path: Path, task: str, features: dict[str, Any], refused: bool) -> None:
    prepare_config = etl_config(tmp_path, [], task=task, features=features).prepare
    with pytest.raises(ConfigError, match=r"adds another column of that name .*; give the feature another name in prepare\.query \(AS\)"
                       ) if refused else nullcontext():
        require_free_features(prepare_config)


def test_the_likeliest_classes_are_there_for_several_classes_only() -> None:
    assert predicted_columns("multiclass", 3)[-1] == "top_k"
    with pytest.raises(ConfigError, match=r"score\.top_k=3 asks for the likeliest of several classes, and this model's task is binary"):
        predicted_columns("binary", 3)


@pytest.mark.parametrize(("task", "names"), [
    ("binary", {"label": "split"}), ("binary", {"row_id": "Model"}), ("binary", {"label": "prediction"}),
    ("multiclass", {"label": "prediction"})])
def test_a_name_that_scores_need_is_refused_before_anything_is_read(tmp_path: Path, task: str, names: dict[str, str]) -> None:
    config = etl_config(tmp_path, [], task=task, query="no SQL", **names)
    (tmp_path / "trips.csv").unlink()
    with pytest.raises(ConfigError, match=rf"called {next(iter(names.values()))}, and scores have another column .*; give it another"):
        prepare(config)
    assert list(tmp_path.iterdir()) == []
