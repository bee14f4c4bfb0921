"""Storage that is away for a moment: asked again, and never taken for damage."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import requests

from harness.datasets import write_dataset
from sparkring.errors import CheckpointDamaged, DatasetError, StorageError
from sparkring.pipelines.data.dataset.integrity import Mismatch, check_footers, verify_files
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.stores.hdfs import HdfsStore
from sparkring.pipelines.data.stores.retry import retry, retry_read
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.files import CheckpointFiles
from sparkring.pipelines.training.checkpoints.names import DATA, FOLDER
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.spark_jobs.run.folder import RunFolder
from sparkring.spark_jobs.spark.progress import SILENT
from sparkring.spark_jobs.stored.checkpoints import list_checkpoints
from sparkring.spark_jobs.train import _SparkRing
from tests.support import seams
from tests.support.away_store import BusyStore

ROWS = 183


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.RETRY_FIRST_PAUSE_S, 0.001)
    monkeypatch.setattr(seams.RETRY_LONGEST_PAUSE_S, 0.002)


def busy() -> StorageError:
    """As a store says it."""
    return StorageError("503 Slow Down")


class Question:
    """Gives these answers, one after the other."""

    def __init__(self, *answers: BaseException | str) -> None:
        self._answers, self.asked = list(answers), 0

    def __call__(self) -> str:
        self.asked += 1
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_a_refusal_is_not_asked_about_again() -> None:
    refused = StorageError("refused")
    refused.__cause__ = PermissionError()
    question = Question(refused, "here")
    with pytest.raises(StorageError, match="refused"):
        retry(question)
    assert question.asked == 1


def test_a_question_is_asked_until_storage_answers_or_stays_away() -> None:
    question = Question(busy(), busy(), "here")
    assert (retry(question), question.asked) == ("here", 3)
    with pytest.raises(StorageError, match="503"):
        retry(Question(busy(), "too late"), for_s=0.0)


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), OSError(28, "No space left on device"), ValueError("no")])
def test_what_another_try_would_not_mend_is_told_at_once(error: Exception) -> None:
    question = Question(error, "never asked for")
    with pytest.raises(type(error)):
        retry(question)
    assert question.asked == 1


@pytest.mark.parametrize(("error", "away"), [
    (busy(), True), (OSError("When reading: AWS Error SLOW_DOWN during GetObject operation"), True), (TimeoutError("timed out"), True),
    (ConnectionResetError(104, "Connection reset by peer"), True), (requests.ConnectionError("Max retries exceeded"), True),
    (OSError("Couldn't deserialize thrift"), False), (FileNotFoundError(2, "No such file"), False), (OSError(5, "Input/output"), False)],
    ids=lambda value: f"{type(value).__name__}: {value}")
def test_what_is_read_is_read_again_where_storage_was_away_and_not_where_its_bytes_are_no_good(error: OSError, *, away: bool) -> None:
    question = Question(error, "rows")
    if away:
        assert (retry_read(question), question.asked) == ("rows", 2)
        error = StorageError(str(error))
    with pytest.raises(type(error)) as caught:
        retry_read(Question(error, "too late"), for_s=0.0)
    assert str(caught.value) == str(error)


@pytest.mark.parametrize(("error", "said"), [
    (RuntimeError(), "RuntimeError"), (RuntimeError("no block\nat Java"), "no block"), (requests.ConnectionError(), "ConnectionError")])
def test_an_error_of_hdfs_without_a_word_is_told_by_its_name(error: Exception, said: str) -> None:
    store = HdfsStore("hdfs://somewhere:8020/folder")
    with pytest.raises(StorageError, match=f"hdfs://somewhere:8020/folder/name: {said}; check that"), store._explained("name"):
        raise error


# -- checkpoints ----------------------------------------------------------------------------------------------------------


def _save(checkpoints: Checkpoints, steps: int, *, loss: float) -> None:
    part = checkpoints.put_part(f"state {steps}".encode(), steps=steps, rank=0)
    checkpoints.commit(CheckpointDocument(
        position=Position(steps_done=steps), validation={"loss": loss}, content_id="c", dataset_version=1, seed=1, lanes=24, batch_rows=8,
        code_version="test", parts=(part,)))


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A run's folder with checkpoints after 1 and 2 steps, the first of which is the best."""
    checkpoints = Checkpoints(str(tmp_path))
    _save(checkpoints, 1, loss=0.1)
    _save(checkpoints, 2, loss=0.2)
    return tmp_path


def _read_through(store: BusyStore) -> Checkpoints:
    checkpoints = Checkpoints(store.url)
    checkpoints._files = CheckpointFiles(store)
    return checkpoints


@pytest.mark.parametrize("what", [f"{FOLDER}/2-0.json", f"{DATA}/2-"], ids=["the document", "its part"])
def test_a_checkpoint_that_cannot_be_read_for_a_while_is_waited_for(two: Path, what: str) -> None:
    found, damaged = retry(_read_through(BusyStore(two, error=busy, failures=3, of=[what])).latest)
    assert found is not None
    assert (tuple(found.state), damaged) == ((b"state 2",), [])


@pytest.mark.parametrize("what", [f"{FOLDER}/2-0.json", f"{DATA}/2-"], ids=["the document", "its part"])
def test_a_checkpoint_that_cannot_be_read_is_not_passed_over_for_an_older_one(two: Path, what: str) -> None:
    away = _read_through(BusyStore(two, error=lambda: OSError(5, "Input/output error"), failures=None, of=[what]))
    with pytest.raises(StorageError, match=r"checkpoint .*/2-0\.json.* cannot be read now .*Input/output error.*delete that checkpoint"):
        away.latest()
    gone = _read_through(BusyStore(two, error=FileNotFoundError, failures=None, of=[what]))
    found, damaged = gone.latest()  # the control: what is not there is damage
    assert found is not None
    assert (tuple(found.state), [type(error) for error in damaged]) == ((b"state 1",), [CheckpointDamaged])


def test_the_best_checkpoint_is_not_exchanged_and_nothing_of_it_is_deleted_while_it_cannot_be_read(two: Path) -> None:
    away = _read_through(BusyStore(two, error=lambda: OSError(5, "Input/output error"), failures=None, of=[f"{FOLDER}/1-0.json"]))
    for act in (away.best, lambda: away.retain(1)):
        with pytest.raises(StorageError, match=r"1-0\.json cannot be read now"):
            act()
    assert len(list((two / DATA).iterdir())) == 2
    best = Checkpoints(str(two)).best()
    assert best is not None
    assert tuple(best.state) == (b"state 1",)


def test_a_commit_deletes_no_checkpoint_that_it_cannot_read_and_is_one_all_the_same(two: Path) -> None:
    away = _read_through(BusyStore(two, error=lambda: OSError(5, "Input/output error"), failures=None, of=[f"{FOLDER}/2-0.json"]))
    _save(away, 1, loss=0.3)
    assert Checkpoints(str(two)).numbers() == [1, 2]
    _save(Checkpoints(str(two)), 1, loss=0.3)  # the control: one that it can read, of no later life
    assert [each.steps for each in list_checkpoints(str(two))] == [1]


def test_the_driver_waits_to_hear_how_far_a_run_is(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, numbers, answers = str(two), Checkpoints.numbers, [busy(), busy()]

    def asked(self: Checkpoints) -> list[int]:
        if answers:
            raise answers.pop()
        return numbers(self)

    monkeypatch.setattr(seams.CHECKPOINTS_NUMBERS, asked)
    assert (RunFolder(url).committed(), answers) == (2, [])


def test_nobody_is_asked_to_stop_before_there_are_ranks(two: Path) -> None:
    manifest = write_dataset(two / "dataset", ([20],)).manifest()
    with SILENT.stage("train") as bar:
        run = _SparkRing(RunFolder(str(two)), "", manifest, lanes=24, spark=None, progress=SILENT, bar=bar, work=None)
    files = sorted(two.rglob("*"))
    assert not run.ask_to_stop()
    assert sorted(two.rglob("*")) == files


# -- rows -----------------------------------------------------------------------------------------------------------------


def _rows(dataset: Dataset, store: BusyStore) -> int:
    reader = SplitReader(store, dataset.manifest(), "train")
    return sum(batch.rows for batch in Loader(reader, LoaderConfig(batch_rows=64, seed=3, lanes=24), rank=0, num_ranks=1).epoch(0))


def test_rows_are_read_again_where_storage_was_away(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, ([100, 50], [33]))
    store = BusyStore(tmp_path, error=lambda: OSError("AWS Error SLOW_DOWN during GetObject operation"), failures=2)
    assert (_rows(dataset, store), store.failed) == (ROWS, 2)


def test_rows_that_do_not_come_are_storage_s_fault_where_it_does_not_answer_and_the_dataset_s_where_it_does(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path, ([100, 50], [33]))
    monkeypatch.setattr(seams.READER_RETRY_READ, partial(retry_read, for_s=0.0))
    with pytest.raises(StorageError, match="AWS Error SLOW_DOWN"):
        _rows(dataset, BusyStore(tmp_path, error=lambda: OSError("AWS Error SLOW_DOWN"), failures=None))
    with pytest.raises(DatasetError, match="cannot be read: Unexpected end of stream"):
        _rows(dataset, BusyStore(tmp_path, error=lambda: OSError("Unexpected end of stream"), failures=1))


def test_files_are_looked_at_again_where_storage_was_away_and_nothing_is_found_wrong_with_them(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_dataset(tmp_path, ([100, 50], [33])).manifest()

    def looked(store: BusyStore) -> list[list[Mismatch]]:
        return [check_footers(store, manifest, manifest.files, threads=1), verify_files(store, manifest, threads=1)]

    assert looked(BusyStore(tmp_path, error=lambda: OSError("AWS Error SLOW_DOWN"), failures=2)) == [[], []]
    damaged = looked(BusyStore(tmp_path, error=lambda: OSError("Couldn't deserialize thrift"), failures=1))  # the control
    assert [(finding.path, "has no readable footer" in finding.text) for finding in damaged[0]] == [(manifest.files[0].path, True)]
    monkeypatch.setattr(seams.INTEGRITY_RETRY_READ, partial(retry_read, for_s=0.0))
    away = BusyStore(tmp_path, error=lambda: OSError("AWS Error SLOW_DOWN"), failures=None)
    with pytest.raises(StorageError, match="AWS Error SLOW_DOWN"):
        check_footers(away, manifest, manifest.files)
    with pytest.raises(StorageError, match="AWS Error SLOW_DOWN"):
        verify_files(away, manifest)
