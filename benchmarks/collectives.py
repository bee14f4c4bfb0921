"""Milliseconds of a sum between hosts, by size: ring, tree, two levels, and the way that costs choose, beside torch's Gloo and Horovod.

    sudo .venv/bin/python -m benchmarks.collectives            (network namespaces need root and iproute2: harness/hosts.py)

1 KB to 64 MB on 2 and 4 hosts of one rank, and on 2 hosts of two, where two levels differ. On two cores 4 ranks wait for each other's turn
of a core, so their times show the order of the ways rather than a cluster's. All ways are open at once in the same processes and take
turns in a new order each round, several sums each; a time is that of the slowest rank, a ratio the median over the rounds.

``worst_over_best``: over all sizes, on 2 and 4 hosts of one rank, the worst ratio of our choice to the best of ring, tree and two levels;
``worst_over_best_shared`` the same on hosts of two. ``ratio_to_torch_64mb``: our choice over torch's Gloo, the worse of 2 and 4 hosts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.support.report import print_result
from harness.host_ranks import run_on_hosts
from harness.hosts import Host, hosts, why_no_hosts
from sparkring.spark_jobs.launch.rank import environment as rank_environment

KB, MB = 1 << 10, 1 << 20
ROUNDS = {KB: 120, 16 * KB: 120, 256 * KB: 80, 4 * MB: 48, 64 * MB: 12}
"""By size: short sums vary more from round to round."""
DEADLINE_S = 600.0
"""For all rounds of a size."""
OURS = ("ring", "tree", "two_level")
SIDES = (*OURS, "auto", "horovod", "torch")
LAYOUTS = {"2 hosts": (2, 1), "4 hosts": (4, 1), "2 hosts of 2 ranks": (2, 2)}
"""(Hosts, ranks of each.)"""
FIRST_PORT = 21_000
"""torch's ranks of each size and layout meet at a port of their own."""

Seconds = Mapping[str, Sequence[float]]
"""Of each side in each round."""


def measured(made: Sequence[Host], size: int, rounds: int, *, per_host: int = 1, port: int = FIRST_PORT,
             sides: Sequence[str] = SIDES) -> Seconds:
    """Seconds of a sum of ``size`` bytes on the slowest rank."""
    found = run_on_hosts(made, "benchmarks.support.sums_rank:measure", size, list(sides), rounds, f"{made[0].address}:{port}",
                         ranks_per_host=per_host, deadline_s=DEADLINE_S)
    return {side: [max(each) for each in zip(*(rank[side] for rank in found), strict=True)] for side in sides}


def _ratio(seconds: Seconds, side: str, peer: str) -> float:
    return statistics.median(one / other for one, other in zip(seconds[side], seconds[peer], strict=True))


def _best(seconds: Seconds) -> str:
    return min(OURS, key=lambda side: statistics.median(seconds[side]))


def main() -> None:
    """Measure all layouts and sizes; print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="of every size; default more of small ones")
    options = parser.parse_args()
    reason = why_no_hosts()
    if reason:
        raise SystemExit(f"benchmarks.collectives: {reason}.")
    os.environ.update(rank_environment.MEMORY)
    found: dict[tuple[str, int], Seconds] = {}
    with tempfile.TemporaryDirectory() as folder, hosts(Path(folder), "alpha", "beta", "gamma", "delta") as made:
        for layout, (num_hosts, per_host) in LAYOUTS.items():
            for size, rounds in ROUNDS.items():
                seconds = measured(made[:num_hosts], size, options.rounds or rounds, per_host=per_host, port=FIRST_PORT + len(found))
                found[layout, size] = seconds
                print(f"{layout}, {size / KB:g} KB: " + ", ".join(
                    f"{side} {statistics.median(seconds[side]) * 1e3:.3g} ms" for side in SIDES), flush=True)
    apart, shared = ([(size, seconds) for (layout, size), seconds in found.items() if (LAYOUTS[layout][1] == 1) == alone]
                     for alone in (True, False))
    largest, smallest = ([seconds for size, seconds in apart if size == wanted] for wanted in (max(ROUNDS), min(ROUNDS)))
    print_result(
        [{"layout": layout, "KB": f"{size / KB:g}", **{side: f"{statistics.median(seconds[side]) * 1e3:.3g}" for side in SIDES}}
         for (layout, size), seconds in found.items()],
        {"worst_over_best": max(_ratio(seconds, "auto", _best(seconds)) for _, seconds in apart),
         "worst_over_best_shared": max(_ratio(seconds, "auto", _best(seconds)) for _, seconds in shared),
         "ratio_to_torch_64mb": max(_ratio(seconds, "auto", "torch") for seconds in largest),
         "ratio_to_horovod_64mb": max(_ratio(seconds, "auto", "horovod") for seconds in largest),
         "ratio_to_torch_1kb": max(_ratio(seconds, "auto", "torch") for seconds in smallest)})


if __name__ == "__main__":
    main()
