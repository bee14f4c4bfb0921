"""Milliseconds a hop between two ranks, on one host and between two: our transports beside bare torch.distributed send and recv.

    uv run python -m benchmarks.transport            (between hosts only as root: harness/hosts.py)

Two ranks play ping-pong with a tensor of each size on each side in turn, round by round. A hop is half of there and back; a side's
figure is the median over the rounds of a round's median, a ratio (x) the median over the rounds of the ratio to torch in a round. All
receives are posted before the message is sent. Torch gets what is best for it: Gloo on the one interface that leads to the other
rank, and a buffer that it receives into again and again, where ours give a new tensor each time. ``sidecar`` is what a user gets: on
one host shared memory, between hosts ``sockets``, which play over loopback, too. On one host Horovod runs beside all of them, with
the short cycle that its own transport needs. The two hosts are network namespaces, joined by a switch.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from benchmarks.support.report import Figure, print_result
from harness.host_ranks import run_on_hosts
from harness.hosts import hosts, why_no_hosts
from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.transports.base import Edge, Transport
from sparkring.pipelines.parallel.transports.horovod import HorovodTransport, pairs
from sparkring.pipelines.parallel.transports.sidecar import SidecarTransport
from sparkring.spark_jobs.launch.rank import environment as rank_environment

ROUNDS = 21
SIZES = {"4k": (4 << 10, 200), "256k": (256 << 10, 100), "4m": (4 << 20, 30), "64m": (64 << 20, 5)}
"""Bytes of a message, and ping-pongs of a round."""
MICRO_BATCHES = 4
HOST_ROUNDS = 41
"""Between hosts: the same seconds, as there are half as many sides."""
DEADLINE_S = 600.0
"""For all rounds: two minutes where the machine is busy with others."""

Seconds = dict[str, dict[str, list[float]]]
"""Of a hop: by side and size, a round's median each."""
PingPong = Callable[[str, Tensor, int], Tensor]
"""(size, tensor, repetition) -> what came back, on rank 0."""


def by_torch(rank: int) -> PingPong:
    """Bare send and recv of torch.distributed."""
    buffers = {size: torch.empty(nbytes // 4) for size, (nbytes, _) in SIZES.items()}

    def play(size: str, tensor: Tensor, _: int) -> Tensor:
        buffer = buffers[size]
        if rank == 0:
            arriving = distributed.irecv(buffer, src=1)
            distributed.send(tensor, dst=1)
            assert arriving is not None
            arriving.wait()
        else:
            distributed.recv(buffer, src=0)
            distributed.send(buffer, dst=0)
        return buffer

    return play


def by_transport(rank: int, transport: Transport) -> PingPong:
    """One of ours."""
    def play(size: str, tensor: Tensor, repetition: int) -> Tensor:
        micro_batch = repetition % MICRO_BATCHES
        there, back = Edge(0, 1, f"f{size}"), Edge(1, 0, f"b{size}")
        if rank == 0:
            transport.expect(back, micro_batch)
            transport.send(there, micro_batch, [tensor])
            return transport.receive(back, micro_batch)[0]
        arrived = transport.receive(there, micro_batch)
        transport.expect(there, (micro_batch + 1) % MICRO_BATCHES)  # ready for the next one before this one is back
        transport.send(back, micro_batch, arrived)
        return arrived[0]

    return play


def on_one_host(context: RankContext) -> Seconds:
    """All sides on a rank."""
    edges = every_edge()
    store = f"/dev/shm/sparkring-{context.token}-store"  # noqa: S108 - random name; removed below
    join_torch(context, store)
    with Communicator(context, extra_sets=pairs(edges), messages_by_horovod=True) as communicator, \
            HorovodTransport(communicator, edges) as horovod, SidecarTransport(communicator, edges) as sidecar, \
            SidecarTransport(communicator, edges, shared_memory=False) as sockets:
        assert (sidecar.description, sockets.description) == ("shared memory", "sockets")
        sides = {"torch": by_torch(context.rank), "sidecar": by_transport(context.rank, sidecar),
                 "sockets": by_transport(context.rank, sockets), "horovod": by_transport(context.rank, horovod)}
        seconds = play_rounds(communicator, sides, ROUNDS)
    if context.rank == 0:
        Path(store).unlink()
    distributed.destroy_process_group()
    return seconds


def between_hosts(context: RankContext, store: str) -> Seconds:
    """Torch and the sidecar on a rank of one of two hosts."""
    join_torch(context, store)
    with Communicator(context) as communicator, SidecarTransport(communicator, every_edge()) as sidecar:
        assert sidecar.description == "sockets"
        sides = {"torch": by_torch(context.rank), "sockets": by_transport(context.rank, sidecar)}
        seconds = play_rounds(communicator, sides, HOST_ROUNDS)
    distributed.destroy_process_group()
    return seconds


def every_edge() -> list[Edge]:
    """Those of all sizes."""
    return [edge for size in SIZES for edge in (Edge(0, 1, f"f{size}"), Edge(1, 0, f"b{size}"))]


def join_torch(context: RankContext, store: str) -> None:
    """Have torch's ranks meet at a file."""
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=context.rank, world_size=context.size,
                                   timeout=timedelta(seconds=60))


def play_rounds(communicator: Communicator, sides: Mapping[str, PingPong], rounds: int) -> Seconds:
    """What rank 0 returns counts."""
    seconds: Seconds = {side: {size: [] for size in SIZES} for side in sides}
    for round_number in range(1 + rounds):
        for size, (nbytes, repetitions) in SIZES.items():
            tensor = torch.full((nbytes // 4,), float(round_number))
            for side, play in sides.items():
                communicator.barrier(f"{side}.{size}")
                took = [timed(play, size, tensor, repetition) for repetition in range(repetitions)]
                if round_number:  # the first one is not counted
                    seconds[side][size].append(statistics.median(took) / 2)
    return seconds


def timed(play: PingPong, size: str, tensor: Tensor, repetition: int) -> float:
    """Seconds there and back; what came back must be right."""
    began = time.perf_counter()
    back = play(size, tensor, repetition)
    took = time.perf_counter() - began
    assert back[0] == tensor[0]
    assert back[-1] == tensor[-1]
    return took


def ratios(seconds: Seconds) -> dict[str, dict[str, float]]:
    """To torch: by side and size."""
    return {side: {size: statistics.median(mine / theirs for mine, theirs in zip(found[size], seconds["torch"][size], strict=True))
                   for size in SIZES} for side, found in seconds.items()}


def main() -> None:
    """Play and print."""
    os.environ.update(rank_environment.MEMORY)  # before the first process starts
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    played = {"one host": run_on_ranks(2, on_one_host, cycle_ms=None, deadline_s=DEADLINE_S)[0]}
    reason = why_no_hosts()
    if reason is None:
        with tempfile.TemporaryDirectory() as folder, hosts(Path(folder), "alpha", "beta") as made:
            played["two hosts"] = run_on_hosts(made, "benchmarks.transport:between_hosts", f"{folder}/store", deadline_s=DEADLINE_S)[0]
    table, fields, worst = [], dict[str, Figure](), dict[str, float]()
    for where, seconds in played.items():
        ratio = ratios(seconds)
        of_hosts = "" if where == "one host" else "hosts_"
        for side, found in seconds.items():
            milliseconds = {size: 1e3 * statistics.median(found[size]) for size in SIZES}
            table.append({"ranks on": where, "side": side, **{f"{size} ms": f"{milliseconds[size]:.3f}" for size in SIZES},
                          **{f"{size} x": f"{ratio[side][size]:.2f}" for size in SIZES}})
            fields |= {f"{of_hosts}{side}_ms_{size}": milliseconds[size] for size in SIZES}
            worst[f"{of_hosts}{side}"] = max(ratio[side].values())
    print_result(table, {
        "sidecar_over_torch_worst": worst["sidecar"], "sockets_over_torch_worst": max(worst["sockets"], worst.get("hosts_sockets", 0.0)),
        "sockets_over_torch_worst_one_host": worst["sockets"],
        "sockets_over_torch_worst_two_hosts": worst.get("hosts_sockets", f"not measured: {reason}"), **fields})


if __name__ == "__main__":
    main()
