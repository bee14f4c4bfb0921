"""Horovod ranks without Spark, for tests and benchmarks of what runs on a rank: ``run_on_ranks(2, fn, *args)``.

Ranks are forked from one process that has torch and Horovod imported already, so a launch costs well under a second.
The hosts may be pretended: ``hosts=(0, 0, 1)`` makes Horovod and the mesh believe in two machines.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import secrets
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from horovod.runner.http.http_server import RendezvousServer

from sparkring.pipelines.parallel.context import RankContext

DEADLINE_S = 90.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["harness.rank_imports"])


def run_on_ranks(num_ranks: int, fn: Callable[..., Any], *args: Any, hosts: Sequence[int] = (), shared_memory: bool = True,
                 cycle_ms: float | None = 2, doomed: Collection[int] = (), deadline_s: float = DEADLINE_S,
                 must_end: bool = False) -> list[Any]:
    """Run ``fn(context, *args)`` on real Horovod ranks and return the results by rank.

    Args:
        num_ranks: Ranks to start.
        fn: A module-level function.
        args: Picklable.
        hosts: Host number of each rank; default all on one.
        shared_memory: What the context says.
        cycle_ms: Horovod's cycle time; None leaves it to the rank.
        doomed: Ranks that are meant to raise, die or hang: nobody waits for them, and their result is None.
        deadline_s: Seconds to wait for the others.
        must_end: Whether the processes of the others must also end by themselves; else they are ended once they have reported their result.
    Raises:
        AssertionError: a rank raised (its traceback is the message), died, or did not end in time.
    """
    where = tuple(hosts) or (0,) * num_ranks
    server = RendezvousServer(verbose=0)
    port = server.start()
    server.init([])
    token = secrets.token_hex(16)
    ranks = []
    try:
        for rank in range(num_ranks):
            context = RankContext(rank=rank, hosts=where, device="cpu", token=token, deadline_s=20.0, shared_memory=shared_memory)
            receive, send = _context.Pipe(duplex=False)
            process = _context.Process(target=_main, args=(send, _environment(context, port, cycle_ms), context, fn, args), daemon=True)
            process.start()
            send.close()
            ranks.append((process, receive))
        results = _collect({rank: receive for rank, (_, receive) in enumerate(ranks) if rank not in doomed}, deadline_s)
        for rank, (process, _) in enumerate(ranks):
            if must_end and rank not in doomed:
                process.join(deadline_s)
                assert process.exitcode == 0, f"rank {rank} reported its result and did not end: exit code {process.exitcode}"
        return [results.get(rank) for rank in range(num_ranks)]
    finally:
        for process, _ in ranks:
            process.kill()
            process.join()
        server.stop()


def _collect(pipes: Mapping[int, Connection], deadline_s: float) -> dict[int, Any]:
    results: dict[int, Any] = {}
    until = time.monotonic() + deadline_s
    while len(results) < len(pipes):
        pending = [pipe for rank, pipe in pipes.items() if rank not in results]
        arrived = wait(pending, timeout=max(0.0, until - time.monotonic()))
        assert arrived, f"ranks {[rank for rank in pipes if rank not in results]} did not end within {deadline_s:g} s"
        for rank, pipe in pipes.items():
            if pipe not in arrived:
                continue
            try:
                ok, value = pipe.recv()
            except EOFError:
                raise AssertionError(f"rank {rank} died without a word") from None
            assert ok, f"rank {rank} raised:\n{value}"
            results[rank] = value
    return results


def _environment(context: RankContext, port: int, cycle_ms: float | None) -> dict[str, str]:
    cycle = {} if cycle_ms is None else {"HOROVOD_CYCLE_TIME": str(cycle_ms)}
    return horovod_environment(context, address="127.0.0.1", port=port, interface="lo") | cycle | {"OMP_NUM_THREADS": "1"}


def horovod_environment(context: RankContext, *, address: str, port: int, interface: str) -> dict[str, str]:
    """What Horovod reads on a rank: its place, the rendezvous, and the interface to listen on."""
    host, sizes = context.hosts[context.rank], Counter(context.hosts)
    local_rank = context.local_ranks.index(context.rank)
    names = {"RANK": context.rank, "SIZE": context.size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": sizes[host],
             "CROSS_RANK": sum(1 for other in range(host) if sizes[other] > local_rank),
             "CROSS_SIZE": sum(1 for count in sizes.values() if count > local_rank),
             "GLOO_RENDEZVOUS_ADDR": address, "GLOO_RENDEZVOUS_PORT": port, "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo",
             "GLOO_IFACE": interface, "HOSTNAME": f"host{host}"}
    return {f"HOROVOD_{name}": str(value) for name, value in names.items()}


def _main(pipe: Connection, environment: dict[str, str], context: RankContext, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    gc.enable()  # rank_imports.py has disabled it
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    try:
        result = (True, fn(context, *args))
    except BaseException:  # noqa: BLE001 - whatever it is, the test wants to read it
        result = (False, traceback.format_exc())
    pipe.send(result)
    pipe.close()
