"""Documents of a run that were damaged end a command in one line: what was found, what was expected, what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.datasets import write_dataset
from sparkring import __main__ as cli
from sparkring.conf.schema import Config
from sparkring.errors import DocumentDamaged
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.documents import read_document
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.spark_jobs import evaluate
from sparkring.spark_jobs.run.folder import RunFolder
from sparkring.spark_jobs.run.identity import identity_of
from sparkring.spark_jobs.run.listing import read_document_of
from sparkring.spark_jobs.scoring import latest as scores
from sparkring.spark_jobs.train import train
from tests.support.configs import write
from tests.support.training import train_config

DAMAGED = [pytest.param(b"", r"no JSON \(Expecting value", id="nothing"), pytest.param(b'{"format": 1', "no JSON", id="the first half"),
           pytest.param(b'{"format": "\xff"}', r"no JSON \('utf-8'", id="no text"), pytest.param(b"[1]", "a JSON list", id="a list"),
           pytest.param(b"{}", "created_at: Field required|no weights_sha256|steps: Field required|folder: Field required",
                        id="an empty object")]


def _run(folder: Path) -> tuple[Config, str]:
    """A config whose run folder was claimed, and the file that holds it."""
    dataset = write_dataset(folder / "dataset", [[600], [300]])
    config = train_config(folder, model={"hidden": [4]}).fitted_to(dataset.manifest().splits["train"].rows)
    (folder / "runs/first").mkdir(parents=True)
    RunFolder(config.run_url).claim(identity_of(config, dataset.manifest()), dataset_url=dataset.url, lanes_given=False)
    return config, write(folder, "tiny.yaml", config.model_dump(mode="json"))


def _ends(command: str, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    monkeypatch.setattr(sys, "argv", ["sparkring", command, file])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(("content", "found"), DAMAGED)
@pytest.mark.parametrize(("name", "remedy"), [("first.json", "bring it back from a copy, or delete it and the folder"),
                                              ("first/result.json", "delete it and train again, which resumes from the last checkpoint")])
def test_a_run_whose_document_was_damaged_is_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, remedy: str,
                                                         capsys: pytest.CaptureFixture[str], content: bytes, found: str) -> None:
    _, file = _run(tmp_path)
    (tmp_path / "runs" / name).write_bytes(content)
    code, said = _ends("train", file, monkeypatch, capsys)
    one_line = " ".join(said.split())
    assert (code, "Traceback" in said) == (2, False)
    assert f"runs/{name} is damaged: found" in one_line
    assert remedy in one_line
    with pytest.raises(DocumentDamaged, match=f"found ({found})"):
        train(train_config(tmp_path, model={"hidden": [4]}))
    assert (tmp_path / "runs" / name).read_bytes() == content


def test_whole_documents_are_read_and_missing_ones_missed(tmp_path: Path) -> None:
    config, _ = _run(tmp_path)
    store, folder = LocalStore(tmp_path / "runs/first"), RunFolder(config.run_url)
    assert folder.result() is None
    mine = identity_of(config, Dataset(config.dataset).manifest())
    again = folder.claim(mine, dataset_url=config.dataset, lanes_given=False)
    assert again == read_document_of(LocalStore(tmp_path / "runs"), "first").identity
    with pytest.raises(FileNotFoundError):
        read_document(store, "result.json", remedy="")


@pytest.mark.parametrize(("content", "found"), DAMAGED)
def test_an_evaluation_that_was_damaged_is_told(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "evaluation.json").write_bytes(content)
    with pytest.raises(DocumentDamaged, match=rf"evaluation\.json is damaged: found ({found}).*; delete it and run `sparkring eval"):
        evaluate._evaluated(LocalStore(tmp_path), "evaluation.json")
    (tmp_path / "evaluation.json").unlink()
    assert evaluate._evaluated(LocalStore(tmp_path), "evaluation.json") is None


@pytest.mark.parametrize(("content", "found"), DAMAGED)
def test_scores_whose_document_was_damaged_are_told_and_none_is_committed_over_them(tmp_path: Path, content: bytes, found: str) -> None:
    store, document = LocalStore(tmp_path), tmp_path / "_scores.json"
    made = scores.Scores(folder="f00", rows=3, split="test", weights_sha256="w", dataset_url="d", dataset_version=1, content_id="c",
                         created_at="2026-01-01T00:00:00Z")
    document.write_bytes(content)
    acts: list[Callable[[], object]] = [lambda: scores.latest_scores(store), lambda: scores.commit_scores(store, made)]
    for act in acts:
        with pytest.raises(DocumentDamaged, match=rf"_scores\.json is damaged: found ({found}).*; delete it and run `sparkring score`"):
            act()
    assert document.read_bytes() == content
    document.unlink()
    assert scores.latest_scores(store) is None
    scores.commit_scores(store, made)
    assert scores.latest_scores(store) == made
