"""What the ring tests run on ranks. Each function takes the rank's context first; a rank imports this module by name."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.shared_memory.named_files import create_locked, segment_path, socket_path

FOREVER_S = 600.0
"""Longer than any test waits: a rank that sleeps so long is ended by others or the test fails."""


def allreduce_sum(value: float) -> float:
    """One Horovod allreduce."""
    import horovod.torch as hvd
    import torch

    return float(hvd.allreduce(torch.tensor([value]), op=hvd.Sum).item())


def introduce(context: RankContext, folder: str) -> dict[str, Any]:
    """Join the ring and tell what a rank sees of itself."""
    import horovod.torch as hvd
    import psutil
    import torch

    hvd.init()
    hvd.shutdown()
    hvd.init()  # again, as after a failure: nothing of the first time is in the way
    sys.stdout.write(f"hello from {context.rank}\n")
    both = (psutil.Process(), psutil.Process(task_process()))
    listening = [connection.laddr.ip for process in both for connection in process.net_connections("tcp")
                 if connection.status == psutil.CONN_LISTEN]
    return {
        "rank": context.rank, "hosts": context.hosts, "device": context.device, "horovod": (hvd.rank(), hvd.size(), hvd.local_rank()),
        "sum": allreduce_sum(10.0 + context.rank), "threads": torch.get_num_threads(), "listening": listening, "stdin": sys.stdin.read(),
        "gpu": os.environ["CUDA_VISIBLE_DEVICES"], "nccl": os.environ["NCCL_SOCKET_IFNAME"],
        "pid": os.getpid(), "task": task_process(), "token": context.token, "parent": os.getppid(),
    }


def raise_on_rank_1(context: RankContext) -> float:
    """Rank 1 raises while the others wait for it in an allreduce."""
    import horovod.torch as hvd

    hvd.init()
    if context.rank == 1:
        raise ValueError("the user's mistake")
    return allreduce_sum(1.0)


def die_on_rank_1(context: RankContext, folder: str, how: str, children: int = 1) -> float:
    """Rank 1, which has children, dies while the others wait for it in an allreduce."""
    import horovod.torch as hvd

    hvd.init()
    mark(context, folder)
    if context.rank == 1:
        for _ in range(children):
            subprocess.Popen(["sleep", str(FOREVER_S)])
        sys.stdout.write("my last words\n")
        if how == "exit":
            sys.exit(3)
        os.kill(os.getpid(), getattr(signal, how))
    return allreduce_sum(1.0)


def return_a_tensor(context: RankContext) -> Any:
    """A result that JSON cannot hold, on rank 1 only."""
    import torch

    return torch.ones(1) if context.rank == 1 else 1.0


def leave_early(context: RankContext) -> float:
    """Rank 2 has nothing to do in the end and returns while the others still work together."""
    import horovod.torch as hvd

    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair])
    if context.rank == 2:
        return -1.0
    import torch

    time.sleep(1.0)  # long enough for rank 2 to be gone, were it let go
    return float(hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum, process_set=pair).item())


def never_join(context: RankContext) -> float:
    """Rank 1 never comes to the meeting that rank 0 waits at."""
    import horovod.torch as hvd

    if context.rank == 1:
        time.sleep(FOREVER_S)
    hvd.init()
    return allreduce_sum(1.0)


def sleep(context: RankContext, folder: str) -> None:
    """Never come back, with a child that does not either."""
    child = subprocess.Popen(["sleep", str(FOREVER_S)])
    mark(context, folder)
    child.wait()


def sleep_while_opening(context: RankContext, folder: str) -> None:
    """Never come back, with the names in /dev/shm that a rank has while its peers open them."""
    create_locked(segment_path(context.token, context.rank), 1 << 16)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path(context.token, context.rank)))
        sleep(context, folder)


def communicate(context: RankContext) -> float:
    """Join the ring as training does, through what shared memory the host has."""
    import torch

    from sparkring.pipelines.parallel.collectives.communicator import Communicator

    with Communicator(context) as communicator:
        return float(communicator.sum(torch.tensor([1.0]), name="sum").item())


def exit_before_joining(context: RankContext) -> float:
    """Rank 1 ends before it joins, while rank 0 waits for it in ``hvd.init``."""
    import horovod.torch as hvd

    if context.rank == 1:
        os._exit(3)
    hvd.init()
    return allreduce_sum(1.0)


def train_with_new_starts(context: RankContext, folder: str) -> dict[str, Any]:
    """Train, start Horovod again and again until there is a file ``go-on``, train on; what a thief would like to know too."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    generator = torch.Generator().manual_seed(context.rank)
    inputs, targets = (torch.randn(64, size, generator=generator, dtype=torch.float64) for size in (8, 1))
    weights = torch.zeros(8, 1, dtype=torch.float64)

    def train(num_steps: int) -> None:
        for _ in range(num_steps):
            gradient = inputs.T @ (inputs @ weights - targets)
            weights.sub_(hvd.allreduce(gradient, op=hvd.Sum, name="gradient"), alpha=1e-3)

    train(30)
    mark(context, folder)
    starts = 0
    go_on = 0.0
    while not go_on:
        hvd.shutdown()
        hvd.init()  # the ranks meet anew
        starts += 1
        go_on = float(hvd.allreduce(torch.tensor([float(Path(folder, "go-on").exists())]), op=hvd.Min, name="go-on"))
    train(30)
    return {"weights": weights.flatten().tolist(), "starts": starts, "address": os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
            "key": os.environ.get("_HOROVOD_SECRET_KEY", "")}


def task_process() -> int:
    """Process id of the Spark task that this rank belongs to; a forked rank is not its child, a rank of upstream's launcher is."""
    return int(os.environ.get("SPARKRING_TASK") or os.getppid())


def mark(context: RankContext, folder: str) -> None:
    """Leave a file that tells of this rank's processes."""
    told = {"token": context.token, "pid": os.getpid(), "task": task_process(), "parent": os.getppid(),
            "address": os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]}
    with Path(folder, f"rank-{context.rank}-{os.getpid()}.part").open("w", encoding="ascii") as file:
        json.dump(told, file)
    Path(file.name).rename(Path(folder, f"rank-{context.rank}-{os.getpid()}.json"))
