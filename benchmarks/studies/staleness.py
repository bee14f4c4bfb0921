"""The study ``staleness``: what training without lock-step does to the loss, by how stale its updates are and how far its models drift.

Every strategy trains the same network from the same weights on the same steps. One of four ranks is slower than the others by pauses, so
that staleness reaches its bound. Time is not looked at here: that is ``benchmarks/staleness.py``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.studies.charts import SHADES, Axis, Drawing, Line, histograms, lines
from benchmarks.studies.digits import TRAIN_ROWS, write_digits
from benchmarks.studies.markdown import listed, prose, table
from benchmarks.studies.runs import Run, config_of, trained
from benchmarks.studies.study import Numbers, Study
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.strategies.relaxed.stale_sync import StaleSyncStrategy
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.reporting.comparison.facts import compared
from sparkring.spark_jobs.reporting.facts.words import several

RANKS, SLOWER, PAUSE_S = 4, 6, 0.004
"""Ranks; the slow one's pause before a step, in pauses of the others."""
BATCH_ROWS, HIDDEN, MOST_POINTS = 32, (128,), 60
SGD = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "schedule": "constant"}
EXACT = "exact"


def strategies(bounds: Sequence[int], every: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The sections ``train.strategy`` by their names on the page."""
    stale = {f"stale_sync:{bound}": {"kind": "stale_sync", "bound": bound} for bound in bounds}
    inverse = {f"{name}, inverse": {**section, "stale_lr": "inverse"} for name, section in stale.items() if section["bound"]}
    local = {f"local_sgd:{steps}": {"kind": "local_sgd", "every_steps": steps} for steps in every}
    return {EXACT: {"kind": EXACT}, **stale, **inverse, **local}


def measure(*, bounds: Sequence[int], every: Sequence[int], repeats: int, epochs: int) -> Numbers:
    """Train by each strategy, several times if it comes out differently each time."""
    with tempfile.TemporaryDirectory(prefix="sparkring-study-") as name:
        write_digits(Path(name) / "dataset")
        found = [_strategy(Path(name), word, section, repeats, epochs) for word, section in strategies(bounds, every).items()]
    return {"train_rows": TRAIN_ROWS, "batch_rows": BATCH_ROWS, "ranks": RANKS, "hidden": HIDDEN, "slower": SLOWER,
            "epochs": epochs, "repeats": repeats, "lr": SGD["lr"], "momentum": SGD["momentum"], "strategies": found}


def _strategy(folder: Path, word: str, section: Mapping[str, Any], repeats: int, epochs: int) -> dict[str, Any]:
    """What came of one strategy: each run's last losses, the first one's curve, the staleness of all updates."""
    runs = []
    for number in range(repeats if section.get("bound") else 1):  # the others come out the same each time
        config = config_of(folder / f"{word}-{number}", folder / "dataset", hidden=HIDDEN, num_ranks=RANKS, epochs=epochs, strategy=section,
                           batch_rows=BATCH_ROWS, on_nonfinite="skip", optimizer=SGD)
        runs.append(trained(config, one_is_slow))
    facts = [compared(word, run.url, run.events, run.held_out) for run in runs]
    curve = facts[0].by_step
    each = max(1, len(curve.x) // MOST_POINTS)
    print(f"{word}: loss {[round(fact.loss, 4) for fact in facts]}", flush=True)
    return {"strategy": word, "bound": section.get("bound"), "loss": [fact.loss for fact in facts],
            "accuracy": [fact.held_out["accuracy"] for fact in facts], "updates": facts[0].steps, "sent_bytes": facts[0].sent_bytes,
            "curve": {"x": curve.x[::each], "y": curve.y[::each]}, "staleness": _histogram(runs)}


def _histogram(runs: Sequence[Run]) -> dict[int, int]:
    """Updates by their staleness; empty where none can be stale."""
    counts = Counter(record["staleness"] for run in runs for record in run.events if record["event"] == "step" and "staleness" in record)
    return {staleness: counts[staleness] for staleness in range(max(counts) + 1)} if counts else {}


def one_is_slow(context: RankContext, job: dict[str, Any]) -> dict[str, Any] | None:
    """Train; with stale_sync each rank pauses before a step, the last one for longer."""
    pause_s = PAUSE_S * (SLOWER if context.rank == RANKS - 1 else 1)
    with patch.object(StaleSyncStrategy, "learn", _paused(StaleSyncStrategy.learn, pause_s)):
        return train_rank(context, job)


def _paused(learn: Callable[..., Any], pause_s: float) -> Callable[..., Any]:
    def slow(strategy: StaleSyncStrategy, *args: Any) -> Any:
        time.sleep(pause_s)
        return learn(strategy, *args)

    return slow


def page(numbers: Numbers) -> list[str | Drawing]:
    """The page."""
    found = {each["strategy"]: each for each in numbers["strategies"]}
    plain = {word: each for word, each in found.items() if "inverse" not in word}
    return [
        prose("Ranks that do not wait for each other compute gradients with weights that others have changed in the meantime, or with a",
              "model of their own. This page shows what that does to the loss, with everything else the same: rows, steps, initial weights",
              "and learning rate."),
        prose(f"A network with a hidden layer of {numbers['hidden'][0]} units trains on {numbers['train_rows']:,} of scikit-learn's digits",
              f"for {several(numbers['epochs'], 'epoch')}, with {numbers['batch_rows']} rows a step, by SGD with rate {numbers['lr']:g}",
              f"and momentum {numbers['momentum']:g}, on {numbers['ranks']} ranks. With `stale_sync` one of them pauses",
              f"{numbers['slower']} times as long as the others before each step, so that its updates are stale. The number after a",
              "strategy is its `bound` or `every_steps`; *inverse* is `stale_lr: inverse`, which divides the rate of an update by",
              "1 + its staleness ([how to choose](../how-to/strategies.md))."),
        "## Loss against updates",
        lines("loss", f"Train loss against updates: {_ends(plain)}", [
            Line(label=word, x=each["curve"]["x"], y=each["curve"]["y"], marks=False, style=_style(word)) for word, each in plain.items()],
            x=Axis(title="updates", limits=(0, None)), y=Axis(title="train loss", log=10)),
        prose("A curve is of one run, a moving mean over the steps in the order in which they ended. The order of stale updates depends on",
              "time, so no two runs are equal; of them the table has the median of",
              f"{several(numbers['repeats'], 'run')}."),
        table([_row(word, each) for word, each in found.items()]),
        _verdict(found),
        "## How stale updates were",
        histograms("histogram", "Histograms of staleness by bound", {
            f"bound {each['bound']}": {int(key): value / sum(each["staleness"].values()) for key, value in each["staleness"].items()}
            for each in plain.values() if each["staleness"]}, x="staleness", y="share of updates"),
        prose("The staleness of an update is the number of updates applied between the pull of its weights and its own application. With",
              f"{numbers['ranks']} equal ranks it is about {numbers['ranks'] - 1}; the slow rank's updates are as stale as the bound lets",
              "them be, and a small bound has the others wait for it.", _bounds_held(plain)),
        *_inverse(found)]


def _row(word: str, each: Mapping[str, Any]) -> dict[str, object]:
    stale = {int(key): value for key, value in each["staleness"].items()}
    return {"strategy": word, "updates": each["updates"], "train loss, last epoch": f"{statistics.median(each['loss']):.4f}",
            "held-out accuracy": f"{statistics.median(each['accuracy']):.1%}",
            "staleness, mean": f"{_mean(stale):.2f}" if stale else "", "largest": max(stale) if stale else "",
            "MB sent": f"{each['sent_bytes'] / 1e6:.1f}"}


def _mean(stale: Mapping[int, int]) -> float:
    return sum(staleness * count for staleness, count in stale.items()) / sum(stale.values())


def _loss(each: Mapping[str, Any]) -> float:
    return float(statistics.median(each["loss"]))


def _ends(found: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{word} {_loss(each):.4f}" for word, each in found.items())


def _verdict(found: Mapping[str, Mapping[str, Any]]) -> str:
    exact = _loss(found[EXACT])
    ratios = {word: _loss(each) / exact for word, each in found.items() if word != EXACT}
    lowest, highest = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return prose(f"`{EXACT}` ends with a train loss of {exact:.4f}. The lowest of the others is {ratios[lowest]:.2f} times that",
                 f"(`{lowest}`), the highest {ratios[highest]:.2f} times (`{highest}`).",
                 "With `local_sgd` each rank's step is over its share of the rows, with the rate of the whole batch; between two exchanges",
                 "its models drift apart, and each exchange takes their mean.")


def _bounds_held(found: Mapping[str, Mapping[str, Any]]) -> str:
    largest = {each["bound"]: max(map(int, each["staleness"])) for each in found.values() if each["staleness"]}
    return f"The largest seen are {listed([f'{most} with bound {bound}' for bound, most in largest.items()])}."


def _inverse(found: Mapping[str, Mapping[str, Any]]) -> list[str | Drawing]:
    pairs = {word: (each, found[f"{word}, inverse"]) for word, each in found.items() if f"{word}, inverse" in found}
    drawn = [Line(label=each["strategy"], x=each["curve"]["x"], y=each["curve"]["y"], marks=False, style=style, shade=shade)
             for both, shade in zip(pairs.values(), SHADES, strict=False) for each, style in zip(both, ("line", "dashed"), strict=True)]
    words = [f"{_loss(constant):.4f} to {_loss(inverse):.4f} (`{word}`)" for word, (constant, inverse) in pairs.items()]
    return ["## A step size that knows staleness",
            lines("inverse", "Train loss against updates, with a constant rate and with one that falls with staleness", drawn,
                  x=Axis(title="updates", limits=(0, None)), y=Axis(title="train loss", log=10)),
            prose(f"`stale_lr: inverse` changes the train loss of the last epoch from {listed(words)}. It makes steps smaller, so it costs",
                  "progress where staleness does no harm, and helps where stale steps overshoot. Source: [Zhang and others",
                  "2016](https://arxiv.org/abs/1511.05950).")]


def _style(word: str) -> str:
    return "dashed" if word.startswith("local") else "line"


STUDY = Study(name="staleness", title="Staleness and drift", measure=measure, page=page,
              whole={"bounds": (0, 1, 4, 16), "every": (1, 4, 16), "repeats": 3, "epochs": 8},
              quick={"bounds": (0, 4), "every": (4,), "repeats": 1, "epochs": 1})
