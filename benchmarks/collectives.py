"""Milliseconds of a sum between hosts, by size: ring, tree, two levels, and the way that costs choose, beside torch's Gloo and Horovod.

    sudo .venv/bin/python -m benchmarks.collectives            (network namespaces need root and iproute2: harness/hosts.py)

1 KB to 64 MB on 2 and 4 hosts of one rank, and on 2 hosts of two, where two levels differ. On two cores 4 ranks wait for each other's turn
of a core, so their times show the order of the ways rather than a cluster's. All ways are open at once in the same processes and take
turns in a new order each round, several sums each; a time is that of the slowest rank, a ratio the median over the rounds. The processes
are started several times, and each time our choice is made anew; what counts is the mean over these openings, since one way in two of them
differs by up to a half.

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
OPENINGS = 3
ROUNDS = {KB: 40, 16 * KB: 40, 256 * KB: 28, 4 * MB: 16, 64 * MB: 5}
"""Of an opening, by size: short sums vary more from round to round."""
DEADLINE_S = 600.0
"""For all rounds of a size in an opening."""
OURS = ("ring", "tree", "two_level")
SIDES = (*OURS, "auto", "horovod", "torch")
LAYOUTS = {"2 hosts": (2, 1), "4 hosts": (4, 1), "2 hosts of 2 ranks": (2, 2)}
"""(Hosts, ranks of each.)"""
FIRST_PORT = 21_000
"""torch's ranks of each opening meet at a port of their own."""

Seconds = Mapping[str, Sequence[float]]
"""Of each side in each round."""
Openings = Sequence[Seconds]
"""Of the same ways, sums and hosts."""


def measured(made: Sequence[Host], size: int, rounds: int, *, per_host: int = 1, port: int = FIRST_PORT,
             sides: Sequence[str] = SIDES) -> Seconds:
    """Seconds of a sum of ``size`` bytes on the slowest rank."""
    found = run_on_hosts(made, "benchmarks.support.sums_rank:measure", size, list(sides), rounds, f"{made[0].address}:{port}",
                         ranks_per_host=per_host, deadline_s=DEADLINE_S)
    return {side: [max(each) for each in zip(*(rank[side] for rank in found), strict=True)] for side in sides}


def _usual(openings: Openings, side: str) -> float:
    """Seconds of a side's sum."""
    return statistics.mean(statistics.median(seconds[side]) for seconds in openings)


def _ratio(openings: Openings, side: str, peer: str) -> float:
    return statistics.mean(statistics.median(one / other for one, other in zip(seconds[side], seconds[peer], strict=True))
                           for seconds in openings)


def _best(openings: Openings) -> str:
    return min(OURS, key=lambda side: _usual(openings, side))


def main() -> None:
    """Measure all layouts and sizes; print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="of every size in an opening; default more of small ones")
    options = parser.parse_args()
    reason = why_no_hosts()
    if reason:
        raise SystemExit(f"benchmarks.collectives: {reason}.")
    os.environ.update(rank_environment.MEMORY)
    found: dict[tuple[str, int], Openings] = {}
    with tempfile.TemporaryDirectory() as folder, hosts(Path(folder), "alpha", "beta", "gamma", "delta") as made:
        for layout, (num_hosts, per_host) in LAYOUTS.items():
            for size, rounds in ROUNDS.items():
                first_port = FIRST_PORT + OPENINGS * len(found)
                openings = [measured(made[:num_hosts], size, options.rounds or rounds, per_host=per_host, port=first_port + number)
                            for number in range(OPENINGS)]
                found[layout, size] = openings
                print(f"{layout}, {size / KB:g} KB: " + ", ".join(f"{side} {_usual(openings, side) * 1e3:.3g} ms" for side in SIDES),
                      "| auto by opening:", *(f"{_ratio([each], 'auto', _best(openings)):.2f}" for each in openings), flush=True)
    apart, shared = ([(size, openings) for (layout, size), openings in found.items() if (LAYOUTS[layout][1] == 1) == alone]
                     for alone in (True, False))
    largest, smallest = ([openings for size, openings in apart if size == wanted] for wanted in (max(ROUNDS), min(ROUNDS)))
    print_result(
        [{"layout": layout, "KB": f"{size / KB:g}", **{side: f"{_usual(openings, side) * 1e3:.3g}" for side in SIDES}}
         for (layout, size), openings in found.items()],
        {"worst_over_best": max(_ratio(openings, "auto", _best(openings)) for _, openings in apart),
         "worst_over_best_shared": max(_ratio(openings, "auto", _best(openings)) for _, openings in shared),
         "ratio_to_torch_64mb": max(_ratio(openings, "auto", "torch") for openings in largest),
         "ratio_to_horovod_64mb": max(_ratio(openings, "auto", "horovod") for openings in largest),
         "ratio_to_torch_1kb": max(_ratio(openings, "auto", "torch") for openings in smallest)})


if __name__ == "__main__":
    main()
