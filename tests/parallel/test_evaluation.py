"""Held-out figures of classes, numbers and tokens are sums over all ranks' rows divided once: on one rank as on three uneven ones."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from torch import Tensor
from torch.nn import functional

from harness.ranks import run_on_ranks
from sparkring.conf.schema import TrainConfig
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing, TokensFeature
from sparkring.pipelines.data.dataset.row_schema import Standardisation
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.evaluation.evaluate import evaluate, evaluate_fully

FITTED = Standardisation(mean=1e6, std=20.0)
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
        return evaluate([(mine["logits"], mine["label"])], communicator, cast("Manifest", manifest), TrainConfig())


def _evaluate_fully(context: RankContext) -> dict[str, Any] | None:
    first, last = SPLITS[context.rank], SPLITS[context.rank + 1]
    rows = _rows("multiclass")
    features = Preprocessing(numeric=(), categorical=(), train_rows=1, classes=tuple("abcdef"))
    manifest = SimpleNamespace(task="multiclass", preprocessing=features)
    with Communicator(context) as communicator:
        mine = [(rows["logits"][first:last], rows["label"][first:last])]
        return evaluate_fully(mine, communicator, cast("Manifest", manifest), split="test")


def _evaluate_numbers(context: RankContext) -> tuple[dict[str, float] | None, dict[str, Any] | None]:
    predicted, labels = (part[SPLITS[context.rank]:SPLITS[context.rank + 1]] for part in _numbers())
    features = Preprocessing(numeric=(), categorical=(), train_rows=1, label=FITTED)
    manifest = cast("Manifest", SimpleNamespace(task="regression", preprocessing=features))
    with Communicator(context) as communicator:
        mine = [(predicted[:2], labels[:2]), (predicted[2:], labels[2:])]  # on rank 1 the second has no rows
        return (evaluate(mine, communicator, manifest, TrainConfig(loss="absolute")),
                evaluate_fully(mine, communicator, manifest, split="test"))


def _numbers() -> tuple[Tensor, Tensor]:
    """Standardised predictions and labels."""
    predicted, noise = torch.randn(2, ROWS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return predicted, predicted + 0.3 * noise


def test_predicted_numbers_of_uneven_ranks_are_measured_in_the_labels_units() -> None:
    (found, fully), *others = run_on_ranks(3, _evaluate_numbers)
    assert others == [(None, None)] * 2
    predicted, labels = (FITTED.mean + FITTED.std * part.numpy() for part in _numbers())
    expected = {"rmse": math.sqrt(mean_squared_error(labels, predicted)), "mae": mean_absolute_error(labels, predicted),
                "r2": r2_score(labels, predicted)}
    assert found == pytest.approx({"loss": expected["mae"] / FITTED.std, **expected})
    assert fully is not None
    assert {name: fully[name] for name in expected} == pytest.approx(expected)
    assert (fully["rows"], sum(part["rows"] for part in fully["bins"])) == (ROWS, ROWS)


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
