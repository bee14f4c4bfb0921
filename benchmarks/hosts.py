"""Throughput of a data-parallel step on two hosts of one rank, beside torch DDP and Horovod's own optimizer, over links of given rates.

    sudo .venv/bin/python -m benchmarks.hosts            (network namespaces need root and iproute2: harness/hosts.py)

An encoder of 7.3 M parameters, a step of about half a second on one thread; and, unshaped, the small network of the flights (``_small``),
a step of some milliseconds, in which a sum's latency shows. Each side runs in fresh processes, all sides in turn, for
several rounds; a ratio is the median over the rounds. ``overlap`` is the share of our summing that the backward pass hides: 1 - (our step -
the step of ranks that sum nothing) / (the sums alone). torch may take its sockets' names from the host's own, so it is told the interface.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.step import Case, rows_for
from benchmarks.support.report import print_result
from harness.host_ranks import run_on_hosts
from harness.hosts import Host, hosts, why_no_hosts
from sparkring.spark_jobs.launch.rank import environment as rank_environment

ROUNDS = 5
FIRST_PORT = 20_000
"""torch's ranks of each run meet at a port of their own."""
SIDES = ("apart", "sparkring", "torch DDP", "horovod optimizer", "sums alone")
STEP_S = 0.5
SMALL = Case("small, unshaped", "tabular", 512, 200)


def _run(side: str, case: Case, made: Sequence[Host], port: int) -> tuple[float, float]:
    """One side once: (seconds of a step of the slowest rank, seconds of summing, the mean)."""
    results = run_on_hosts(made, "benchmarks.support.host_rank:measure", side, asdict(case), f"{made[0].address}:{port}")
    return max(seconds for seconds, _ in results), statistics.mean(wait for _, wait in results)


def _rounds(case: Case, made: Sequence[Host], *, first_port: int) -> list[dict[str, tuple[float, float]]]:
    rounds = []
    for number in range(ROUNDS):
        found = {}
        for place, side in enumerate(SIDES):
            found[side] = _run(side, case, made, first_port + number * len(SIDES) + place)
            print(f"{case.name}, round {number + 1} of {ROUNDS}: {side} {found[side][0] * 1e3:.0f} ms", flush=True)
        rounds.append(found)
    return rounds


def _figures(rounds: Sequence[dict[str, tuple[float, float]]]) -> dict[str, float]:
    def ratio(side: str) -> float:
        return statistics.median(one[side][0] / one["sparkring"][0] for one in rounds)

    overlap = statistics.median(1 - (one["sparkring"][0] - one["apart"][0]) / one["sums alone"][0] for one in rounds)
    return {"ratio_to_ddp": ratio("torch DDP"), "ratio_to_horovod_optimizer": ratio("horovod optimizer"), "overlap": overlap,
            "efficiency_2": ratio("apart")}


def main() -> None:
    """Run both links and print the table and the figures."""
    reason = why_no_hosts()
    if reason:
        raise SystemExit(f"benchmarks.hosts: {reason}.")
    os.environ.update(rank_environment.MEMORY)
    rows = rows_for(STEP_S)
    cases = {Case("1 Gb/s", "encoder", rows, 8): 1000.0, Case("unshaped", "encoder", rows, 8): None, SMALL: None}
    table, figures = [], []
    with tempfile.TemporaryDirectory() as folder, hosts(Path(folder), "alpha", "beta") as made:
        for place, (case, mbit) in enumerate(cases.items()):
            for host in made:
                host.link.clear()
                if mbit is not None:
                    host.link.limit(mbit)
            rounds = _rounds(case, made, first_port=FIRST_PORT + place * ROUNDS * len(SIDES))
            figures.append(_figures(rounds))
            table += [{"case": case.name, "side": side, "ms a step": f"{statistics.median(one[side][0] for one in rounds) * 1e3:.1f}"}
                      for side in SIDES]
    shaped, unshaped, small = figures
    print_result(table, {**shaped, **{f"{key}_unshaped": value for key, value in unshaped.items()},
                         "ratio_to_ddp_small": small["ratio_to_ddp"],
                         "ratio_to_horovod_optimizer_small": small["ratio_to_horovod_optimizer"]})


if __name__ == "__main__":
    main()
