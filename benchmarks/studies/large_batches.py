"""The study ``large-batches``: what a larger batch does to a network after as many epochs, and which rule for the learning rate helps.

The batch grows; epochs, rows and initial weights stay. With ``exact`` a step is the same on any number of ranks, so one rank is enough.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.charts import Axis, Drawing, Line, lines
from benchmarks.studies.digits import TRAIN_ROWS, write_digits
from benchmarks.studies.markdown import listed, prose, table
from benchmarks.studies.runs import config_of, trained
from benchmarks.studies.study import Numbers, Study
from sparkring.spark_jobs.reporting.facts.words import several

BASE_ROWS, BASE_LR, HIDDEN = 16, 0.05, (128,)
WARM_UP = 0.25
"""Share of all steps over which the rate rises."""
LINEAR: dict[str, Any] = {"scaling": "linear", "scaling_rows": BASE_ROWS}
RULES: dict[str, dict[str, Any]] = {
    "as it is": {}, "square root": {**LINEAR, "scaling": "sqrt"}, "linear": LINEAR, "linear, warm-up": LINEAR}


def measure(*, factors: Sequence[int], seeds: Sequence[int], epochs: int) -> Numbers:
    """Train once for each batch (``BASE_ROWS`` times a factor), rule and seed."""
    with tempfile.TemporaryDirectory(prefix="sparkring-study-") as name:
        write_digits(Path(name) / "dataset")
        cells = [_cell(Path(name), rule, factor * BASE_ROWS, seeds, epochs) for factor in factors for rule in RULES]
    return {"train_rows": TRAIN_ROWS, "base_rows": BASE_ROWS, "base_lr": BASE_LR, "hidden": HIDDEN, "epochs": epochs, "warm_up": WARM_UP,
            "seeds": len(seeds), "cells": cells}


def _cell(folder: Path, rule: str, rows: int, seeds: Sequence[int], epochs: int) -> dict[str, Any]:
    """The held-out metrics of one rule with one batch, for each seed."""
    steps = epochs * -(-TRAIN_ROWS // rows)
    optimizer = {"name": "sgd", "lr": BASE_LR, "schedule": "constant", "warmup_steps": round(WARM_UP * steps) if "warm-up" in rule else 0,
                 **RULES[rule]}
    configs = [config_of(folder / f"{rows}-{rule}-{seed}", folder / "dataset", hidden=HIDDEN, num_ranks=1, epochs=epochs, batch_rows=rows,
                         seed=seed, on_nonfinite="skip", optimizer=optimizer) for seed in seeds]
    found = [trained(config).held_out for config in configs]
    print(f"{rule}, {rows} rows: {[round(each['accuracy'], 4) for each in found]}", flush=True)
    return {"rule": rule, "rows": rows, "steps": steps, "lr": configs[0].train.optimizer.peak_lr(rows),
            "accuracy": [each["accuracy"] for each in found], "loss": [each["loss"] for each in found]}


def page(numbers: Numbers) -> list[str | Drawing]:
    """The page."""
    cells = numbers["cells"]
    batches = sorted({cell["rows"] for cell in cells})
    accuracy = {(cell["rule"], cell["rows"]): statistics.median(cell["accuracy"]) for cell in cells}
    rules = list(dict.fromkeys(cell["rule"] for cell in cells))
    best = {rows: max(rules, key=lambda rule: accuracy[rule, rows]) for rows in batches}
    lowest = {rule: accuracy[rule, batches[-1]] for rule in rules}
    return [
        prose("A larger batch makes fewer steps of an epoch. If nothing else changes, the network then learns less in as many epochs;",
              "so the learning rate is raised with the batch, until it is too high. This page shows both."),
        prose(f"A network with a hidden layer of {numbers['hidden'][0]} units trains for {several(numbers['epochs'], 'epoch')} on the",
              f"{numbers['train_rows']:,} digits of scikit-learn's train split, by plain SGD. The rate",
              f"{numbers['base_lr']:g} is for {numbers['base_rows']} rows.",
              "With more rows it stays, or is multiplied by the ratio of the batches (`scaling: linear`) or its square root",
              f"(`scaling: sqrt`); with a warm-up it rises over the first {numbers['warm_up']:.0%} of the steps.",
              "Each number is the median accuracy on held-out digits after the last epoch, over",
              f"{several(numbers['seeds'], 'seed')}.",
              "How many ranks share a batch does not matter: the sum of their gradients is that of the whole batch",
              "([why](../explanation/order.md))."),
        lines("accuracy", "Held-out accuracy against the batch, a line for each rule", [
            Line(label=rule, x=batches, y=[accuracy[rule, rows] for rows in batches], style="dashed" if "warm-up" in rule else "line")
            for rule in rules], x=Axis(title="rows of a step", log=2, ticks=batches), y=Axis(title="held-out accuracy", limits=(0, 1.02))),
        table([{"rows of a step": f"{rows:,}", "steps in all": _of(cells, rules[0], rows)["steps"],
                **{rule: f"{accuracy[rule, rows]:.1%}" for rule in rules}} for rows in batches]),
        prose(f"From {batches[0]} to {batches[-1]:,} rows the accuracy falls from {accuracy[rules[0], batches[0]]:.1%} to",
              f"{listed([f'{value:.1%} ({rule})' for rule, value in lowest.items()])}.",
              "The best rule is", f"{listed([f'`{rule}` with {rows:,} rows' for rows, rule in best.items() if rows > batches[0]])}."),
        prose(f"The linear rule asks for a rate of {_of(cells, 'linear', batches[-1])['lr']:g} with {batches[-1]:,} rows, the square root",
              f"for {_of(cells, 'square root', batches[-1])['lr']:g}. The linear rule keeps the sum of the steps of an epoch, as long as",
              "the gradient hardly changes from one small step to the next; beyond that a step overshoots, and a warm-up helps only if the",
              "network cannot stand the rate at its beginning. The square root keeps the variance of a step. Sources: [Goyal and others",
              "2017](https://arxiv.org/abs/1706.02677), [Krizhevsky 2014](https://arxiv.org/abs/1404.5997)."),
        prose("The keys are those of [`train.optimizer`](../how-to/training.md#optimizers). A spread over seeds belongs to each number:"),
        table([{"rows of a step": f"{cell['rows']:,}", "rule": cell["rule"], "rate": f"{cell['lr']:g}",
                "lowest": f"{min(cell['accuracy']):.1%}", "highest": f"{max(cell['accuracy']):.1%}",
                "median loss": f"{statistics.median(cell['loss']):.3f}"} for cell in cells])]


def _of(cells: Sequence[dict[str, Any]], rule: str, rows: int) -> dict[str, Any]:
    return next(cell for cell in cells if cell["rule"] == rule and cell["rows"] == rows)


STUDY = Study(name="large-batches", title="Large batches, with and without scaling rules", measure=measure, page=page,
              whole={"factors": (1, 4, 16, 64), "seeds": (1, 2, 3), "epochs": 10}, quick={"factors": (1, 64), "seeds": (1,), "epochs": 1})
