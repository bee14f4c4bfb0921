"""The planner against the clock: every layout that it considers is predicted, and run.

    uv run python -m benchmarks.planner [--cases N] [--details FILE]

A case is a network, a number of ranks and a link. The planner measures the network's blocks and the link on as many ranks, with the code
that ``sparkring plan`` runs, and predicts all layouts that it enumerates; each of them is then run on real ranks, by training's
executor, gradient ring and optimizer. The passes sleep (``support/sleeping_models.py``), so that four ranks on two cores do not take
each other's time; messages, sums and updates are real, and arrive late where the link is slow (``support/late_wires.py``).

    step error    of a layout: how far the predicted seconds of a step are from the measured ones
    memory error  of a layout: the same for the bytes of parameters, gradients, optimizer and activations, on the stage where it is worst
    regret        of a case: how much longer the layout takes that the planner would choose than the best one that was run
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch

from benchmarks.support.late_wires import Link
from benchmarks.support.planned_ranks import BUCKET_MB, OPTIMIZER, ROWS, Asked, Measured, Played, measure, play
from benchmarks.support.report import print_result
from benchmarks.support.sleeping_models import NETWORKS, network, rows_of
from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.planner.cost_model import Cluster, ModelProfile
from sparkring.pipelines.parallel.planner.planner import Plan, describe, plan
from sparkring.pipelines.training.profiling.block_counts import count_blocks
from sparkring.pipelines.training.profiling.fit import blocks_of, executor_of, links_of, optimizer_copies
from sparkring.spark_jobs.launch.rank import environment as rank_environment

LINKS = (Link("memory"), Link("4 ms, 400 MB/s", latency_s=4e-3, byte_s=1 / 400e6))
WORLDS = (2, 3, 4)
CYCLE_MS = 5
"""Horovod's, which carries what comes between layouts and nothing else."""
AT_ONCE = 40
"""Layouts of one launch."""


@dataclass(frozen=True)
class Case:
    """What is planned for."""

    network: str
    world: int
    link: Link

    def __str__(self) -> str:
        return f"{self.network}, {self.world} ranks, {self.link.name}"


@dataclass(frozen=True)
class Run:
    """A layout with what was predicted and what was measured of it."""

    plan: Plan
    seconds: float
    held_bytes: dict[int, int]
    """Of the fullest rank of each stage."""

    @property
    def step_error(self) -> float:
        """How far the prediction is from the clock."""
        return abs(self.plan.seconds / self.seconds - 1)

    @property
    def memory_error(self) -> float:
        """How far it is from what was held, on the stage where it is worst."""
        predicted = [stage.parameters + stage.gradients + stage.optimizer + stage.activations for stage in self.plan.prediction.memory]
        return max(abs(predicted[stage] / held - 1) for stage, held in self.held_bytes.items())


def cases() -> list[Case]:
    """All of them."""
    return [Case(network, world, link) for link, network, world in product(LINKS, NETWORKS, WORLDS)]


def measured(wanted: Sequence[Case]) -> dict[tuple[Link, int], list[Measured]]:
    """What ranks measure for the planner: a launch for each link and number of ranks."""
    networks: dict[tuple[Link, int], list[str]] = defaultdict(list)
    for case in wanted:
        networks[case.link, case.world].append(case.network)
    return {(link, world): run_on_ranks(world, measure, link, names, (1, max(2, ROWS // world)), cycle_ms=CYCLE_MS)
            for (link, world), names in networks.items()}


def planned(case: Case, ranks: Sequence[Measured]) -> list[Plan]:
    """All layouts, the fastest first."""
    counts = count_blocks(network(case.network, row_s=0.0), lambda rows: rows_of(case.network, rows, device="meta"),
                          dtype=torch.float32)
    model = ModelProfile(blocks=blocks_of(counts, [rank["blocks"][case.network] for rank in ranks]),
                         optimizer_copies=optimizer_copies(OPTIMIZER), executor=executor_of([rank["executor"] for rank in ranks]),
                         step_s=statistics.median(rank["end_s"] for rank in ranks))
    links = links_of(ranks[0]["links"], bucket_bytes=BUCKET_MB * 1e6)
    return plan(model, Cluster(links=links, ranks_per_host=case.world), world=case.world, batch_rows=ROWS)


Clocked = dict[tuple[str, Link, Asked], list[Played]]
"""What ranks saw of layouts, by network and link."""


def play_all(case: Case, plans: Sequence[Plan], clocked: Clocked) -> None:
    """Run every layout of a case that did not run for another one."""
    wanted: dict[int, list[Asked]] = defaultdict(list)
    for one in plans:
        if (case.network, case.link, asked(one)) not in clocked:
            wanted[one.candidate.num_ranks].append(asked(one))
    for num_ranks, layouts in wanted.items():
        for first in range(0, len(layouts), AT_ONCE):
            together = layouts[first:first + AT_ONCE]
            everyone = run_on_ranks(num_ranks, play, case.network, case.link, together, cycle_ms=CYCLE_MS)
            clocked.update({(case.network, case.link, each): list(ranks) for each, *ranks in zip(together, *everyone, strict=True)})


def asked(one: Plan) -> Asked:
    """The layout of a plan."""
    return Asked(one.candidate, one.prediction.bounds)


def runs_of(case: Case, plans: Sequence[Plan], clocked: Clocked) -> list[Run]:
    """Predicted beside measured, in the order of the plan."""
    runs = []
    for one in plans:
        ranks = clocked[case.network, case.link, asked(one)]
        held: dict[int, int] = defaultdict(int)
        for rank in ranks:
            held[rank.stage] = max(held[rank.stage], rank.held_bytes)
        runs.append(Run(one, ranks[0].seconds, dict(held)))
    return runs


def regret(runs: Sequence[Run]) -> float:
    """How much longer the first layout of the plan takes than the best one."""
    return runs[0].seconds / min(run.seconds for run in runs) - 1


def row(case: Case, runs: Sequence[Run]) -> dict[str, object]:
    """A line of the table."""
    errors = [run.step_error for run in runs]
    return {"network": case.network, "ranks": case.world, "link": case.link.name, "layouts": len(runs),
            "error %": f"{100 * statistics.median(errors):.1f}", "worst %": f"{100 * max(errors):.1f}",
            "memory %": f"{100 * max(run.memory_error for run in runs):.1f}", "regret %": f"{100 * regret(runs):.1f}"}


def sentence(case: Case, runs: Sequence[Run]) -> str:
    """What was chosen, and what would have been best."""
    best = min(runs, key=lambda run: run.seconds)
    chosen, better = (f"{describe(run.plan.candidate)}, {run.plan.candidate.micro_batches} micro-batches: "
                      f"predicted {1e3 * run.plan.seconds:.1f} ms, took {1e3 * run.seconds:.1f}" for run in (runs[0], best))
    return f"{case}, {len(runs)} layouts. Chosen: {chosen}. " + ("It is the best." if best is runs[0] else f"Best: {better}.")


def details(case: Case, runs: Sequence[Run]) -> Iterator[str]:
    """A line of JSON a layout."""
    for run in runs:
        yield json.dumps({"network": case.network, "world": case.world, "link": case.link.name, **asdict(run.plan.candidate),
                          "cut": run.plan.prediction.cut, "predicted_s": run.plan.seconds, "measured_s": run.seconds,
                          "held_bytes": run.held_bytes, "memory": [asdict(stage) for stage in run.plan.prediction.memory]})


def main() -> None:
    """Measure, plan, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, help="run so many only, spread over all of them")
    parser.add_argument("--details", type=Path, help="file to which a line of JSON a layout is added")
    options = parser.parse_args()
    os.environ.update(rank_environment.MEMORY)  # before the first process starts
    everything = cases()
    count = options.cases or len(everything)
    wanted = [everything[number * len(everything) // count] for number in range(count)]
    found = measured(wanted)
    clocked: Clocked = {}
    by_case: dict[Case, list[Run]] = {}
    for case in wanted:
        plans = planned(case, found[case.link, case.world])
        play_all(case, plans, clocked)
        by_case[case] = runs_of(case, plans, clocked)
        print(sentence(case, by_case[case]), flush=True)
        if options.details:
            with options.details.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in details(case, by_case[case]))
    errors = [run.step_error for runs in by_case.values() for run in runs]
    regrets = [regret(runs) for runs in by_case.values()]
    print_result([row(case, runs) for case, runs in by_case.items()], {
        "cases": len(wanted), "layouts": len(errors), "layouts_run": len(clocked),
        "median_step_error": statistics.median(errors), "p95_step_error": sorted(errors)[int(0.95 * len(errors))],
        "worst_step_error": max(errors), "memory_error": max(run.memory_error for runs in by_case.values() for run in runs),
        "median_regret": statistics.median(regrets), "worst_regret": max(regrets)})


if __name__ == "__main__":
    main()
