"""The study ``ring-and-tree``: which way of summing is faster, by the size of a buffer and the number of hosts.

    measured     milliseconds of a sum between hosts that are network namespaces of this machine, each with one rank and a link of
                 limited rate (benchmarks/collectives.py); needs root
    planned      seconds of messages and bytes, for more hosts than this machine can be
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
from sparkring.spark_jobs.launch.rank import environment as rank_environment

WAYS = {"ring": "ring", "tree": "tree", "auto": "chosen by cost"}
"""Values of ``train.ring.allreduce``, and their lines."""
MESSAGE_S, BYTES_S = 30e-6, 1.25e9
"""Of the planned hosts: seconds of a message, and bytes a second of a link, 10 Gb/s."""
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
    return {"mbit": mbit, "seconds": found, "assumed": {"message_s": MESSAGE_S, "bytes_s": BYTES_S},
            "planned": {size: {count: _planned(size, count) for count in _powers()} for size in (KB, BUCKET)}}


def _planned(size: int, count: int) -> dict[str, float]:
    """Seconds on a power of two of hosts; the tree is the better of its two kinds. Source: Thakur and others 2005, section 4.5."""
    levels, most = count.bit_length() - 1, 2 * size * (count - 1) / count / BYTES_S
    return {"ring": 2 * (count - 1) * MESSAGE_S + most, "tree": min(2 * levels * MESSAGE_S + most, levels * (MESSAGE_S + size / BYTES_S))}


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
        prose("`train.ring.allreduce: auto` times the ways when the ring opens and chooses for each buffer. Here its choice took at",
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
        prose("Arithmetic of messages and bytes, for more hosts. It is **not measured**: no such cluster was used. It assumes",
              f"{assumed['message_s'] * 1e6:.0f} us a message, and links of {assumed['bytes_s'] * 8 / 1e9:.0f} Gb/s that lose no packets,",
              "whoever sends to whom: the ring's advantage above is not in it."),
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
