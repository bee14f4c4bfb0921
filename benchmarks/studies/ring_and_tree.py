"""The study ``ring-and-tree``: which way of summing is faster, by the size of a buffer and the number of hosts.

    measured     milliseconds of a sum between hosts that are network namespaces of this machine, each with one rank and a link of
                 limited rate (benchmarks/collectives.py); needs root
    planned      the seconds by which ``train.ring.allreduce: auto`` chooses, for more hosts than this machine can be
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.collectives import KB, MB, measured
from benchmarks.studies.charts import Axis, Drawing, Line, lines
from benchmarks.studies.markdown import listed, points, prose, table
from benchmarks.studies.study import Numbers, Study
from harness.hosts import hosts
from sparkring.pipelines.parallel.allreduce.costs import LinkCost, Way
from sparkring.spark_jobs.launch.rank import environment as rank_environment

WAYS = {"ring": "ring", "tree": "tree", "auto": "chosen by cost"}
"""Values of ``train.ring.allreduce``, and their lines."""
ASSUMED = LinkCost(message_s=30e-6, byte_s=1 / 1.25e9, add_byte_s=1 / 10e9)
"""Of the planned hosts: 30 us a message, links of 10 Gb/s, and 10 GB/s of additions."""
BUCKET = 25 * MB
"""Bytes of the larger planned buffer: a bucket of gradients, as PyTorch's DDP has them."""
MOST_HOSTS = 512
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


def measure(*, counts: Sequence[int], sizes: Sequence[int], rounds: int, mbit: float) -> Numbers:
    """Time sums on so many hosts, of so many bytes; all ways take turns in the same processes."""
    os.environ.update(rank_environment.MEMORY)
    found: dict[int, dict[int, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, hosts(Path(folder), *NAMES[:max(counts)]) as made:
        for host in made:
            host.link.limit(mbit)
        for count in counts:
            found[count] = {}
            for size in sizes:
                seconds = measured(made[:count], size, rounds, sides=list(WAYS))
                found[count][size] = {way: statistics.median(seconds[way]) for way in WAYS}
                print(f"{count} hosts, {_size(size)}: {found[count][size]}", flush=True)
    return {"mbit": mbit, "seconds": found, "assumed": {"message_s": ASSUMED.message_s, "bytes_s": 1 / ASSUMED.byte_s,
                                                        "add_bytes_s": 1 / ASSUMED.add_byte_s},
            "planned": {size: {count: _planned(size, count) for count in _powers()} for size in (KB, BUCKET)}}


def _planned(size: int, count: int) -> dict[str, float]:
    """Seconds by the arithmetic of ``auto``; the tree is the better of its two kinds."""
    places = list(range(count))
    return {"ring": Way("ring").seconds(size, places, ASSUMED),
            "tree": min(Way("halving").seconds(size, places, ASSUMED), Way("doubling").seconds(size, places, ASSUMED))}


def _powers() -> list[int]:
    return [2 ** power for power in range(1, MOST_HOSTS.bit_length())]


def page(numbers: Numbers) -> list[str | Drawing]:
    """The page."""
    return [
        prose("A ring cuts a buffer into as many pieces as there are ranks and passes them around twice. A tree sums pairs of ranks, then",
              "pairs of pairs: either whole buffers, or halves of them, which are put together on the way back. All give the same sums,",
              "to rounding. Which is faster?"),
        points("A ring of n ranks takes 2 (n - 1) messages in turn, a tree log2 n of whole buffers, or twice as many of halves.",
               "A ring, and a tree of halves, send each byte about twice, however many ranks there are; a tree of whole buffers sends each "
               "byte log2 n times.",
               "If n is no power of two, some ranks of a tree first send their whole buffer to another one."),
        *_measured_part(numbers), *_planned_part(numbers)]


def _measured_part(numbers: Numbers) -> list[str | Drawing]:
    found = _by_count(numbers["seconds"])
    counts, sizes = list(found), list(next(iter(found.values())))
    small, large = sizes[0], sizes[-1]
    rows = [{"hosts": count, "bytes": _size(size), **{f"{words}, ms": _ms(found[count][size][way]) for way, words in WAYS.items()},
             "ring / tree": f"{found[count][size]['ring'] / found[count][size]['tree']:.2f}"} for count in counts for size in sizes]
    worst = max(found[count][size]["auto"] / min(found[count][size]["ring"], found[count][size]["tree"])
                for count in counts for size in sizes)
    return [
        "## Measured",
        prose(f"Hosts are network namespaces of this machine, {listed([str(count) for count in counts])} of them with one rank each. The",
              f"link of each carries {numbers['mbit']:g} Mb/s. The cores are shared, so a message takes longer the more hosts there are,",
              "and times of small buffers show the order of the ways rather than a cluster's."),
        _picture("small", f"Milliseconds of a sum of {_size(small)} against hosts", found, small),
        _picture("large", f"Milliseconds of a sum of {_size(large)} against hosts", found, large),
        table(rows),
        prose("`train.ring.allreduce: auto` measures the link when the ring opens and chooses for each buffer. Here its choice took at",
              f"most {worst:.2f} times as long as the better of ring and tree.")]


def _picture(name: str, label: str, found: Mapping[int, Mapping[int, Mapping[str, float]]], size: int) -> Drawing:
    counts = list(found)
    return lines(name, label, [
        Line(label=words, x=counts, y=[1e3 * found[count][size][way] for count in counts], style="dotted" if way == "auto" else "line")
        for way, words in WAYS.items()], x=Axis(title="hosts", ticks=counts), y=Axis(title="milliseconds", limits=(0, None)))


def _planned_part(numbers: Numbers) -> list[str | Drawing]:
    assumed, planned = numbers["assumed"], _by_count(numbers["planned"])
    small, large = sorted(planned)
    counts = sorted(planned[large])
    last = counts[-1]
    ratio = {size: planned[size][last]["ring"] / planned[size][last]["tree"] for size in (small, large)}
    return [
        "## Planned",
        prose("The same arithmetic for more hosts. It is **not measured**: no such cluster was used. It assumes",
              f"{assumed['message_s'] * 1e6:.0f} us a message, links of {assumed['bytes_s'] * 8 / 1e9:.0f} Gb/s that do not slow each",
              f"other, and additions at {assumed['add_bytes_s'] / 1e9:.0f} GB/s."),
        lines("planned", "Planned milliseconds of a sum against hosts, by size and way", [
            Line(label=f"{way}, {_size(size)}", x=counts, y=[1e3 * planned[size][count][way] for count in counts],
                 style="dashed" if way == "tree" else "line", marks=False)
            for size in (large, small) for way in ("ring", "tree")],
            x=Axis(title="hosts", log=2, ticks=counts), y=Axis(title="milliseconds", log=10)),
        table([{"hosts": count, **{f"{way}, {_size(size)}, ms": _ms(planned[size][count][way])
                                   for size in (small, large) for way in ("ring", "tree")}} for count in counts]),
        prose(f"On {last} hosts a ring takes {ratio[small]:.0f} times as long as a tree for {_size(small)}, and {ratio[large]:.2f} times",
              f"as long for {_size(large)}.")]


def _by_count(stored: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[int, dict[int, Mapping[str, float]]]:
    """Numbers of JSON, whose keys are strings, by numbers."""
    return {int(first): {int(second): values for second, values in inner.items()} for first, inner in stored.items()}


def _size(num_bytes: int) -> str:
    return f"{num_bytes / MB:g} MB" if num_bytes >= MB else f"{num_bytes / KB:g} KB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"


STUDY = Study(name="ring-and-tree", title="Ring and tree between hosts", measure=measure, page=page,
              whole={"counts": (2, 3, 4, 6, 8), "sizes": (KB, 16 * KB, 256 * KB, 4 * MB), "rounds": 9, "mbit": 200.0},
              quick={"counts": (2, 3), "sizes": (KB, 256 * KB), "rounds": 1, "mbit": 1000.0})
