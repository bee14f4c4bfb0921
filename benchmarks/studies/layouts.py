"""The study ``layouts``: one network on four ranks as replicas, as stages and as both: seconds, bytes and memory, planned and measured.

Every layout trains from the same weights on the same rows in float64, and must end with the weights of one rank.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from numpy.linalg import norm

from benchmarks.studies.charts import Drawing, bars
from benchmarks.studies.digits import write_digits
from benchmarks.studies.markdown import listed, prose, table
from benchmarks.studies.runs import Run, config_of, trained
from benchmarks.studies.study import Numbers, Study
from harness.ranks import run_on_ranks
from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.planner.cost_model import ModelProfile
from sparkring.pipelines.parallel.planner.enumerate import Candidate
from sparkring.pipelines.parallel.planner.prediction import Prediction, predict
from sparkring.pipelines.training.profiling.fit import measured
from sparkring.pipelines.training.profiling.profile import profile_rank
from sparkring.pipelines.training.strategies.gradient_ring import ring_sum_bytes
from sparkring.pipelines.training.train_rank import train_rank

RANKS, BATCH_ROWS = 4, 480
SGD = {"name": "sgd", "lr": 0.01, "momentum": 0.9, "schedule": "constant"}
LAYOUTS = {"data": Candidate(replicas=(4,), micro_batches=4), "hybrid": Candidate(replicas=(2, 2), micro_batches=8),
           "pipeline": Candidate(replicas=(1, 1, 1, 1), micro_batches=16)}
SKIPPED = 1
"""Steps at the beginning whose time is not counted."""


def measure(*, hidden: Sequence[int], epochs: int) -> Numbers:
    """Train a network with these hidden layers once on one rank, then in each layout with the cut that the planner chooses."""
    with tempfile.TemporaryDirectory(prefix="sparkring-study-") as name:
        folder = Path(name)
        dataset = write_digits(folder / "dataset")
        settings: dict[str, Any] = {"hidden": hidden, "epochs": epochs, "batch_rows": BATCH_ROWS, "precision": "float64", "optimizer": SGD}
        one = trained(config_of(folder / "one", folder / "dataset", num_ranks=1, **settings), with_memory)
        asked = config_of(folder / "plan", folder / "dataset", num_ranks=RANKS, **settings)
        model, predicted = _planned(asked, dataset)
        found = [_layout(folder, name, prediction, model, one, settings) for name, prediction in predicted.items()]
    return {"ranks": RANKS, "cores": len(os.sched_getaffinity(0)), "batch_rows": BATCH_ROWS, "epochs": epochs, "hidden": hidden,
            "parameter_bytes": model.parameter_bytes, "one": _facts(one), "layouts": found}


def _planned(config: Config, dataset: Dataset) -> tuple[ModelProfile, dict[str, Prediction]]:
    """What the planner says of each layout, from measurements on the ranks."""
    ranks = run_on_ranks(RANKS, profile_rank, config.model_dump(mode="json"), dataset.url, 1, cycle_ms=None, deadline_s=600)
    model, cluster = measured(config, dataset.manifest(1), ranks)
    return model, {name: predict(model, cluster, candidate, batch_rows=BATCH_ROWS) for name, candidate in LAYOUTS.items()}


def _layout(folder: Path, name: str, planned: Prediction, model: ModelProfile, one: Run, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train in one layout."""
    chosen = planned.candidate
    parallel = {} if chosen.is_plain else {"replicas": chosen.replicas, "micro_batches": chosen.micro_batches, "cut": planned.cut}
    run = trained(config_of(folder / name, folder / "dataset", num_ranks=RANKS, parallel=parallel, **settings), with_memory)
    wanted, weights = one.weights(), run.weights()
    apart = max(float(norm(weights[key] - tensor) / norm(tensor)) for key, tensor in wanted.items())
    print(f"{name}: {statistics.median(run.step_seconds()):.3f} s, planned {planned.seconds:.3f} s, {apart:.1e} from one rank", flush=True)
    held = [each.parameters + each.gradients + each.optimizer + each.activations + each.messages for each in planned.memory]
    return {"layout": name, "replicas": chosen.replicas, "micro_batches": chosen.micro_batches, "cut": planned.cut, **_facts(run),
            "planned_s": planned.seconds, "planned_bytes": max(held), "apart": apart, **_sent(model, planned)}


def _facts(run: Run) -> dict[str, float]:
    return {"step_s": statistics.median(run.step_seconds()[SKIPPED:]), "peak_bytes": max(run.results)}


def _sent(model: ModelProfile, planned: Prediction) -> dict[str, float]:
    """Bytes of a step over all ranks: gradients by rings of a stage's replicas, and activations with their gradients across borders."""
    stages = list(zip(pairwise(planned.bounds), planned.candidate.replicas, strict=True))
    sums = sum(count * ring_sum_bytes(round(model.bytes_of(*bounds)), count) for bounds, count in stages)
    borders = sum(2 * BATCH_ROWS * model.blocks[last - 1].border_bytes for (_, last), _ in stages[:-1])
    return {"gradient_bytes": sums, "activation_bytes": borders}


def with_memory(context: RankContext, job: dict[str, Any]) -> float:
    """Train; returns the bytes by which this process grew at most."""
    before = psutil.Process().memory_info().rss
    train_rank(context, job)
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)


def page(numbers: Numbers) -> list[str | Drawing]:
    """The page."""
    found = {each["layout"]: each for each in numbers["layouts"]}
    fastest, least = (min(found.values(), key=lambda each: each[key]) for key in ("step_s", "peak_bytes"))
    sent = {name: each["gradient_bytes"] + each["activation_bytes"] for name, each in found.items()}
    fewest, most = min(sent, key=sent.__getitem__), max(sent, key=sent.__getitem__)
    hidden, errors = numbers["hidden"], [f"{each['planned_s'] / each['step_s'] - 1:+.0%} (`{name}`)" for name, each in found.items()]
    return [
        prose("The same network can lie on ranks in several ways: as *replicas* that share the rows (data parallelism), as *stages* that",
              "share the layers (pipeline), or as stages of several replicas (hybrid). The result is the same; time, bytes and memory are",
              "not."),
        prose(f"A network with {len(hidden)} hidden layers of {hidden[0]:,} units, {numbers['parameter_bytes'] / 1e6:.0f} MB in float64,",
              f"trains on {numbers['ranks']} ranks with {numbers['batch_rows']} of scikit-learn's digits a step, by SGD with momentum. Its",
              "layers are cut as the [planner](../how-to/plan.md) proposes after measuring them on these ranks."),
        bars("seconds", "Seconds of a step by layout: " + _pairs(found, "step_s", "planned_s"), {
            "measured": {name: each["step_s"] for name, each in found.items()},
            "planned": {name: each["planned_s"] for name, each in found.items()}}, y="seconds of a step"),
        table([_row(each) for each in found.values()]),
        prose("The largest difference of any weight to the training on one rank is", f"{max(each['apart'] for each in found.values()):.1e}",
              "of its tensor's norm: all layouts compute the same gradient ([how](../explanation/order.md))."),
        prose(f"`{fastest['layout']}` has the shortest step, {fastest['step_s'] / numbers['one']['step_s']:.2f} times that of one rank.",
              f"The machine has {numbers['cores']} cores for {numbers['ranks']} ranks, so no layout can be faster than",
              f"{1 / numbers['cores']:.2f} times. Planned seconds differ from measured ones by {listed(errors)}. The planner measures all",
              "ranks at once, and does not know that a rank that waits leaves its core to the others."),
        prose(f"`{fewest}` sends the least, {sent[fewest] / 1e6:.1f} MB a step, `{most}` the most, {sent[most] / 1e6:.1f} MB. Replicas",
              "send their gradients, whatever the batch; stages send what crosses their borders, for each row. These bytes are counted,",
              "not measured: a sum counts as many as a ring sends, though ranks of one host sum through shared memory."),
        prose(f"`{least['layout']}` needs the least memory on its largest rank, {least['peak_bytes'] / 1e6:.0f} MB; one rank alone needs",
              f"{numbers['one']['peak_bytes'] / 1e6:.0f} MB. Measured is the growth of the process at its peak, with the buffers of",
              "rows and checkpoints; planned are parameters, gradients, momentum, activations and messages.")]


def _row(each: Mapping[str, Any]) -> dict[str, object]:
    return {"layout": each["layout"], "replicas of the stages": listed([str(count) for count in each["replicas"]]),
            "micro-batches": each["micro_batches"], "s a step": f"{each['step_s']:.3f}", "planned": f"{each['planned_s']:.3f}",
            "MB of gradients": f"{each['gradient_bytes'] / 1e6:.1f}", "of activations": f"{each['activation_bytes'] / 1e6:.1f}",
            "peak MB of a rank": f"{each['peak_bytes'] / 1e6:.0f}", "planned MB": f"{each['planned_bytes'] / 1e6:.0f}",
            "from one rank": f"{each['apart']:.0e}"}


def _pairs(found: Mapping[str, Mapping[str, Any]], measured_key: str, planned_key: str) -> str:
    return ", ".join(f"{name} {each[measured_key]:.3f}, planned {each[planned_key]:.3f}" for name, each in found.items())


STUDY = Study(name="layouts", title="Data, pipeline and hybrid layouts of one network", measure=measure, page=page,
              whole={"hidden": (1024,) * 8, "epochs": 6}, quick={"hidden": (32,) * 4, "epochs": 1})
