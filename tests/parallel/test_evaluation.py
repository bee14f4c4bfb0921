"""Held-out figures of classes and tokens are sums over all ranks' rows divided once: the same on one rank and on three uneven ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.ranks import run_on_ranks
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing, TokensFeature
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.evaluation.evaluate import evaluate, evaluate_fully

ROWS, SPLITS, PAD = 11, (0, 7, 8, 11), 5
"""Rank 0 has seven rows, rank 1 one, rank 2 three."""
TOKENS = TokensFeature(column="text", length=4, vocabulary=6, end_id=4, pad_id=PAD, tokenizer_sha256=None, tokens={"validation": 40},
                       text_bytes={"validation": 30})


def _rows(task: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if task == "multiclass":
        return {"logits": torch.randn(ROWS, 6, generator=generator), "label": torch.randint(0, 6, (ROWS,), generator=generator)}
    tokens = torch.randint(0, 5, (ROWS, 4), generator=generator)
    tokens[3, 2:] = PAD
    return {"logits": torch.randn(ROWS, 4, 6, generator=generator), "label": tokens}


def _evaluate(context: RankContext, task: str, averaged: bool) -> dict[str, float] | float | None:
    first, last = SPLITS[context.rank], SPLITS[context.rank + 1]
    mine = {name: tensor[first:last] for name, tensor in _rows(task).items()}
    features = Preprocessing(numeric=(), categorical=(), train_rows=1, tokens=TOKENS if task == "next_token" else None)
    manifest = SimpleNamespace(task=task, preprocessing=features)
    with Communicator(context) as communicator:
        if averaged:  # what a framework's usual mean of the ranks' means gives
            mean = functional.cross_entropy(mine["logits"].double(), mine["label"])
            return float(communicator.sum(mean[None], name="averaged")[0]) / context.size
        return evaluate([(mine["logits"], mine["label"])], communicator, cast("Manifest", manifest))


def _evaluate_fully(context: RankContext) -> dict[str, Any] | None:
    first, last = SPLITS[context.rank], SPLITS[context.rank + 1]
    rows = _rows("multiclass")
    features = Preprocessing(numeric=(), categorical=(), train_rows=1, classes=tuple("abcdef"))
    manifest = SimpleNamespace(task="multiclass", preprocessing=features)
    with Communicator(context) as communicator:
        mine = [(rows["logits"][first:last], rows["label"][first:last])]
        return evaluate_fully(mine, communicator, cast("Manifest", manifest), split="test")


def test_the_full_evaluation_counts_each_class_by_what_was_predicted() -> None:
    found, *others = run_on_ranks(3, _evaluate_fully)
    rows = _rows("multiclass")
    confusion = torch.zeros(6, 6, dtype=torch.int64)
    for label, predicted in zip(rows["label"], rows["logits"].argmax(dim=1), strict=True):
        confusion[label, predicted] += 1
    assert others == [None, None]
    assert found == {"rows": ROWS, "confusion": confusion.tolist(),
                     **{name: pytest.approx(value, rel=1e-6) for name, value in _expected("multiclass").items()}}


def _expected(task: str) -> dict[str, float]:
    rows = _rows(task)
    if task == "multiclass":
        logits, answers = rows["logits"].double(), rows["label"]
    else:
        answers = rows["label"][:, 1:].flatten()
        logits = rows["logits"][:, :-1].flatten(0, 1).double()[answers != PAD]
        answers = answers[answers != PAD]
    return {"loss": float(functional.cross_entropy(logits, answers)), "accuracy": float((logits.argmax(dim=1) == answers).double().mean())}


@pytest.mark.parametrize("task", ["multiclass", "next_token"])
def test_uneven_ranks_give_the_figures_of_all_rows_together(task: str) -> None:
    found, *others = run_on_ranks(3, _evaluate, task, False)
    assert others == [None, None]
    expected: dict[str, Any] = _expected(task)
    if task == "next_token":
        expected["bits_per_byte"] = expected["loss"] / 0.6931471805599453 * 40 / 30
    assert found == {name: pytest.approx(value, rel=1e-6) for name, value in expected.items()}


def test_control_the_mean_of_the_ranks_means_is_another_figure() -> None:
    averaged = run_on_ranks(3, _evaluate, "multiclass", True)[0]
    assert averaged != pytest.approx(_expected("multiclass")["loss"], rel=0.01)
