"""Rank processes without Spark: the launcher's own rendezvous and environment, and a fresh process for each rank.

The product's launchers refuse two ranks on one GPU, since NCCL does. Two stages need no NCCL: their messages pass through shared
memory, and what they sum is on the CPU, where Gloo sums it. So the check may start them.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

Work = Literal["train", "gradients", "profile", "allreduce"]
LOOPBACK = "127.0.0.1"
POLL_S = 0.05
TAIL_LINES = 15


class RanksFailed(RuntimeError):
    """A rank raised, died or did not end."""


def run_ranks(work: Work, arguments: Mapping[str, Any], *, num_ranks: int = 1, device: str, folder: Path, deadline_s: float,
              cores: int | None = None, extra: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Start ranks on this machine, wait for them, and return their answers by rank.

    Args:
        work: What each rank does (``rank.py``).
        arguments: Its arguments, as JSON holds them.
        num_ranks: Ranks to start; all of them share the device.
        device: ``cpu`` or ``cuda``.
        folder: For orders, answers and logs; it may be there from an earlier try.
        deadline_s: Seconds until the ranks are ended.
        cores: Cores that they share; by default all of the machine.
        extra: Further variables of their environment.
    Raises:
        RanksFailed: with the last lines of the first rank that failed.
    """
    from sparkring.spark_jobs.launch.meeting.rendezvous import Rendezvous
    from sparkring.spark_jobs.launch.meeting.status_board import StatusBoard

    folder.mkdir(parents=True, exist_ok=True)
    secret, token = secrets.token_hex(16), secrets.token_hex(16)
    server = Rendezvous(LOOPBACK, StatusBoard(secret, size=num_ranks, heartbeat_s=1.0))
    server.start(allowed={LOOPBACK})
    running: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(num_ranks):
            (folder / f"answer-{rank}.json").unlink(missing_ok=True)
            order = {"work": work, "arguments": arguments, "answer": str(folder / f"answer-{rank}.json"), "context": {
                "rank": rank, "hosts": [0] * num_ranks, "device": "cuda:0" if device == "cuda" else "cpu", "token": token,
                "deadline_s": 60.0, "shared_memory": True}}
            (folder / f"order-{rank}.json").write_text(json.dumps(order), encoding="utf-8")
            environment = _environment(rank, num_ranks, cores=cores, device=device, server=server) | dict(extra or {})
            with (folder / f"log-{rank}.txt").open("wb") as log:
                running.append(subprocess.Popen(
                    [sys.executable, "-P", "-m", "benchmarks.gpu_check.rank", str(folder / f"order-{rank}.json")],
                    env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True))
        _wait(running, folder, deadline_s)
        return [json.loads((folder / f"answer-{rank}.json").read_text(encoding="utf-8")) for rank in range(num_ranks)]
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        server.close()


def _wait(running: list[subprocess.Popen[bytes]], folder: Path, deadline_s: float) -> None:
    until = time.monotonic() + deadline_s
    while True:
        codes = [process.poll() for process in running]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            raise RanksFailed(f"rank {failed} ended with exit code {codes[failed]}; its last lines:\n{_tail(folder, failed)}")
        if None not in codes:
            return
        if time.monotonic() > until:
            late = codes.index(None)
            raise RanksFailed(f"rank {late} did not end within {deadline_s:.0f} s; its last lines:\n{_tail(folder, late)}")
        time.sleep(POLL_S)


def _tail(folder: Path, rank: int) -> str:
    return "\n".join((folder / f"log-{rank}.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])


def _environment(rank: int, num_ranks: int, *, cores: int | None, device: str, server: Any) -> dict[str, str]:
    from sparkring.spark_jobs.launch.meeting.hosts import RankPlacement
    from sparkring.spark_jobs.launch.meeting.rendezvous import rendezvous_address
    from sparkring.spark_jobs.launch.rank import environment

    deadline_s, cores = 60.0, cores or len(os.sched_getaffinity(0))
    first_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    placement = RankPlacement(rank=rank, hosts=(0,) * num_ranks)
    return environment.defaults(deadline_s) | os.environ | environment.settings(
        threads=max(1, cores // num_ranks), deadline_s=deadline_s) | placement.horovod_environment() | {
            "CUDA_VISIBLE_DEVICES": first_gpu if device == "cuda" else "",
            "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo", "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": environment.nccl_interface("lo"),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": rendezvous_address(LOOPBACK, server.port, server.board.secret),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.port),
            "NVIDIA_TF32_OVERRIDE": "0",  # float32 is to be float32 in cuBLAS and cuDNN
        }
