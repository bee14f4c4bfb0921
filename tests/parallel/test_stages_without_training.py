"""A trained model evaluated and writing by its stages: the figures and the texts of one process, and no rank builds the whole of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.models.blocks import BlockRun
from sparkring.models.decoding import Sampling, Texts, decode_locally
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.evaluate_rank import evaluate_rank
from sparkring.pipelines.training.generate_rank import GenerateJob, decoding_config, generate_rank, token_ids
from sparkring.pipelines.training.job.job import TrainJob, layout_of
from sparkring.pipelines.training.job.model_files import load_model
from sparkring.pipelines.training.train_rank import train_rank
from tests.support import seams
from tests.support.token_dataset import write_token_dataset
from tests.support.training import train_config

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "two stages, the first twice": (3, {"replicas": [2, 1], "micro_batches": 4, "schedule": "zero_bubble"}),
    "three stages by Horovod": (3, {"replicas": [1, 1, 1], "micro_batches": 3, "transport": "horovod"}),
    "two stages of two shards": (4, {"replicas": [1, 1], "shards": 2, "micro_batches": 4}),
    "two chunks a stage": (2, {"replicas": [1, 1], "micro_batches": 4, "schedule": "interleaved", "chunks_per_stage": 2}),
}
PROMPTS = ((1, 2, 3), (), (4, 6, 8, 10, 1, 3, 5, 7))


def _job(dataset: Path, folder: Path, ranks: int, parallel: dict[str, Any], *, kind: str = "text", epochs: int = 3) -> TrainJob:
    model = {"kind": "text", "width": 16, "layers": 2, "heads": 4, "dropout": 0.1} if kind == "text" else {"hidden": (16, 8)}
    config = train_config(folder, model=model, train={
        "num_ranks": ranks, "epochs": epochs, "batch_rows": 48, "seed": 3, "precision": "float64", "lanes": 24, "parallel": parallel,
        "optimizer": {"name": "adamw", "lr": 0.01, "schedule": "constant"}})
    return TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                    generation=0, lanes=24)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens") / "dataset"
    write_token_dataset(folder, (70, 30, 45, 52))
    return folder


@pytest.fixture(scope="module")
def trained(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A run of one process, and what it said of the validation rows."""
    folder = tmp_path_factory.mktemp("trained")
    summary = run_on_ranks(1, train_rank, _job(dataset, folder, 1, {}).model_dump(mode="json"))[0]
    return folder, summary["validation"]


def _built(context: RankContext, what: str, *args: Any) -> tuple[Any, bool]:
    """What the function returns on this rank, and whether it built all blocks of the model in one piece."""
    whole = []
    init = BlockRun.__init__

    def noting(self: BlockRun, *inner: Any, **named: Any) -> None:
        init(self, *inner, **named)
        whole.append(self.first == 0 and self.last == len(self.block_list))

    seams.replace(seams.BLOCK_RUN_INIT, noting)
    functions: dict[str, Callable[..., Any]] = {"train": train_rank, "evaluate": evaluate_rank, "generate": generate_rank}
    result = functions[what](context, *args)
    assert whole
    return result, any(whole)


@pytest.mark.parametrize("name", LAYOUTS)
def test_stages_evaluate_and_write_as_one_process_does(
        dataset: Path, trained: tuple[Path, dict[str, float]], name: str, tmp_path: Path) -> None:
    (folder, validation), (ranks, parallel) = trained, LAYOUTS[name]
    job = _job(dataset, folder, ranks, parallel)
    model, card = load_model(job.run_url)
    plain = job.model_copy(update={"config": job.config.model_copy(update={"model": card.model.model_copy(update={"dropout": 0.0})})})
    evaluated = run_on_ranks(ranks, _built, "evaluate", plain.model_dump(mode="json"), "validation")
    assert [whole for _, whole in evaluated] == [False] * ranks
    assert [figures for figures, _ in evaluated[1:]] == [None] * (ranks - 1)
    assert evaluated[0][0].items() >= {key: pytest.approx(value, rel=1e-9) for key, value in validation.items()}.items()
    assert evaluated[0][0]["rows"] > 100
    laid = job.model_copy(update={"config": decoding_config(job.config, card.model)})
    assert card.preprocessing.tokens is not None
    ids = token_ids(card.preprocessing.tokens, model.block_list)
    for temperature in (0.0, 1.0):
        document = GenerateJob(train=laid, prompts=PROMPTS, max_tokens=10, temperature=temperature, seed=7).model_dump(mode="json")
        written = run_on_ranks(laid.config.train.num_ranks, _built, "generate", document)
        alone = decode_locally(Texts(PROMPTS, ids, Sampling(max_tokens=10, temperature=temperature, seed=7)), model)
        assert written == [(alone, False)] * laid.config.train.num_ranks
        assert len({tuple(added) for added in alone}) == len(PROMPTS)
    layout = layout_of(laid.config, Dataset(job.dataset_url).manifest(1))
    assert layout is not None
    assert layout.mesh.size == len(parallel["replicas"]) * parallel.get("shards", 1)


def test_training_in_stages_evaluates_without_the_whole_model_either(dataset: Path, tmp_path: Path) -> None:
    staged = _job(dataset, tmp_path / "staged", 2, {"replicas": [1, 1], "micro_batches": 4}, epochs=1).model_dump(mode="json")
    results = run_on_ranks(2, _built, "train", staged)
    assert [whole for _, whole in results] == [False, False]
    assert results[0][0]["validation"]["loss"] > 0
    alone = _job(dataset, tmp_path / "alone", 1, {}, epochs=1).model_dump(mode="json")
    assert run_on_ranks(1, _built, "train", alone)[0][1], "control: one process holds it all"


def test_stages_of_a_table_s_network_are_evaluated_by_all_rows_together(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", ([700],))
    job = _job(tmp_path / "dataset", tmp_path, 2, {"replicas": [1, 1], "micro_batches": 4}, kind="tabular", epochs=1)
    summary = run_on_ranks(2, train_rank, job.model_dump(mode="json"))[0]
    figures, _ = run_on_ranks(2, evaluate_rank, job.model_dump(mode="json"), "validation")
    assert (figures["rows"], len(figures["roc"]["fpr"]) > 10) == (257, True)
    assert {key: figures[key] for key in summary["validation"]} == pytest.approx(summary["validation"], rel=1e-9)
    model, _ = load_model(job.run_url)
    assert next(model.parameters()).dtype == torch.float64


def test_fewer_rows_than_replicas_are_evaluated_as_by_one_process(tmp_path: Path) -> None:
    write_token_dataset(tmp_path / "dataset", (70, 30), validation_rows=1)
    layouts: dict[str, tuple[int, dict[str, Any]]] = {
        "alone": (1, {}), "two of two": (4, {"replicas": [2, 2], "micro_batches": 8}),
        "last twice, by Horovod": (3, {"replicas": [1, 2], "micro_batches": 4, "transport": "horovod"})}
    found = {}
    for name, (ranks, parallel) in layouts.items():
        job = _job(tmp_path / "dataset", tmp_path / name, ranks, parallel, epochs=1).model_dump(mode="json")
        found[name] = run_on_ranks(ranks, train_rank, job)[0]["validation"]
        if name != "alone":
            evaluated = run_on_ranks(ranks, evaluate_rank, job, "validation")[0]
            assert {key: evaluated[key] for key in found[name]} == pytest.approx(found[name], rel=1e-9)
    assert all(figures == pytest.approx(found["alone"], rel=1e-9) for figures in found.values())
