"""Milliseconds a hop between two ranks of a host: our transports beside bare torch.distributed send and recv.

    uv run python -m benchmarks.transport

One launch; two ranks play ping-pong with a tensor of each size on each side in turn, round by round. A hop is half of there and
back; a side's figure is the median over the rounds of a round's median, a ratio (x) the median over the rounds of the ratio to
torch in a round. All receives are posted before the message is sent. Torch gets what is best for it: Gloo on loopback, and a
buffer that it receives into again and again, where ours give a new tensor each time. ``sidecar`` is what a user gets on one
host (shared memory), ``sockets`` what it takes between hosts, here over loopback. Horovod runs beside all of them, with the
short cycle that its own transport needs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from benchmarks.support.report import print_result
from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.transports.base import Edge, Transport
from sparkring.pipelines.parallel.transports.horovod import HorovodTransport, pairs
from sparkring.pipelines.parallel.transports.sidecar import SidecarTransport
from sparkring.spark_jobs.launch.rank import environment as rank_environment

ROUNDS = 7
SIZES = {"4k": (4 << 10, 200), "256k": (256 << 10, 100), "4m": (4 << 20, 30), "64m": (64 << 20, 5)}
"""Bytes of a message, and ping-pongs of a round."""
MICRO_BATCHES = 4
SIDES = ("torch", "sidecar", "sockets", "horovod")

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


def play_rounds(context: RankContext) -> dict[str, dict[str, list[float]]]:
    """Rank 0's seconds a hop: by side and size, a round's median each."""
    edges = [edge for size in SIZES for edge in (Edge(0, 1, f"f{size}"), Edge(1, 0, f"b{size}"))]
    store = f"/dev/shm/sparkring-{context.token}-store"  # noqa: S108 - random name; removed below
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=context.rank, world_size=context.size,
                                   timeout=timedelta(seconds=60))
    with Communicator(context, extra_sets=pairs(edges), messages_by_horovod=True) as communicator, \
            HorovodTransport(communicator, edges) as horovod, SidecarTransport(communicator, edges) as sidecar, \
            SidecarTransport(communicator, edges, shared_memory=False) as sockets:
        assert (sidecar.description, sockets.description) == ("shared memory", "sockets")
        sides = {"torch": by_torch(context.rank), "sidecar": by_transport(context.rank, sidecar),
                 "sockets": by_transport(context.rank, sockets), "horovod": by_transport(context.rank, horovod)}
        seconds: dict[str, dict[str, list[float]]] = {side: {size: [] for size in SIZES} for side in SIDES}
        for round_number in range(1 + ROUNDS):
            for size, (nbytes, repetitions) in SIZES.items():
                tensor = torch.full((nbytes // 4,), float(round_number))
                for side in SIDES:
                    communicator.barrier(f"{side}.{size}")
                    took = [timed(sides[side], size, tensor, repetition) for repetition in range(repetitions)]
                    if round_number:  # the first one is not counted
                        seconds[side][size].append(statistics.median(took) / 2)
    if context.rank == 0:
        Path(store).unlink()
    distributed.destroy_process_group()
    return seconds


def timed(play: PingPong, size: str, tensor: Tensor, repetition: int) -> float:
    """Seconds there and back; what came back must be right."""
    began = time.perf_counter()
    back = play(size, tensor, repetition)
    took = time.perf_counter() - began
    assert back[0] == tensor[0]
    assert back[-1] == tensor[-1]
    return took


def main() -> None:
    """Play and print."""
    os.environ.update(rank_environment.MEMORY)  # before the first process starts
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    seconds = run_on_ranks(2, play_rounds, cycle_ms=None)[0]
    ratio = {side: {size: statistics.median(mine / theirs for mine, theirs in zip(seconds[side][size], seconds["torch"][size], strict=True))
                    for size in SIZES} for side in SIDES}
    milliseconds = {side: {size: 1e3 * statistics.median(seconds[side][size]) for size in SIZES} for side in SIDES}
    table = [{"message": size, **{f"{side} ms": f"{milliseconds[side][size]:.3f}" for side in SIDES},
              **{f"{side} x": f"{ratio[side][size]:.2f}" for side in SIDES[1:]}} for size in SIZES]
    print_result(table, {
        "sidecar_over_torch_worst": max(ratio["sidecar"].values()), "sockets_over_torch_worst": max(ratio["sockets"].values()),
        **{f"{side}_ms_{size}": milliseconds[side][size] for side in SIDES for size in SIZES}})


if __name__ == "__main__":
    main()
