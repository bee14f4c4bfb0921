"""``launcher: horovod.spark``: upstream's own launcher (``horovod.spark.run`` with Gloo) behind ``run_ring``'s contract.

For clusters that have grown used to it. What it does differently, and cannot be told to do otherwise:

- It needs a SparkContext and the main thread, so neither Spark Connect nor a notebook's worker thread can use it.
- It listens wider: services on every interface of the driver and the executors, with an HMAC key, and a rendezvous on every
  interface without one, which stays open until the driver ends.
- It forks the driver, and the fork hangs where another thread of the driver is reading standard input.
- Errors come back by way of the ranks' standard error, and a dead rank is known by its exit code alone, not by its host.
- A rank that returns early ends the ring for the others: let the function end with a barrier.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from sparkring.conf.schema import RingConfig
from sparkring.errors import DeadlinePassed, EnvironmentProblem, RingError
from sparkring.pipelines.parallel.context import RankContext
from sparkring.spark_jobs.launch import rank_environment
from sparkring.spark_jobs.launch.encryption import require_plaintext_allowed
from sparkring.spark_jobs.launch.gpu import common_device, cuda_problem
from sparkring.spark_jobs.launch.hosts import memory_identity
from sparkring.spark_jobs.launch.rank_end import Json, RankEnd, result_to_json, results_or_error
from sparkring.spark_jobs.slots import require_slots, spark_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = "sparkring-end "
"""Opens a line of a rank's standard error that holds its ``RankEnd``."""
ASK_AGAIN_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the driver tells each rank."""

    token: str
    device: Literal["cpu", "cuda"]
    allow_cpu_fallback: bool
    deadline_s: float
    shared_memory: bool


def run_by_horovod(fn: Callable[..., Json], args: Sequence[Any], *, num_ranks: int, spark: SparkSession, config: RingConfig) -> list[Json]:
    """Run ``fn`` by ``horovod.spark.run``; see ``run_ring``."""
    if spark_context(spark) is None:
        raise EnvironmentProblem("launcher horovod.spark needs a SparkContext, which Spark Connect does not have; use launcher: barrier.")
    if threading.current_thread() is not threading.main_thread():
        raise EnvironmentProblem("launcher horovod.spark sets signal handlers, so it works in the main thread only; use launcher: barrier.")
    require_plaintext_allowed(spark, config)
    require_slots(spark, num_ranks=num_ranks, within_s=config.start_timeout_s)
    import horovod.spark
    from horovod.runner.common.util.timeout import TimeoutException

    told = Told(token=uuid4().hex, device=config.device, allow_cpu_fallback=config.allow_cpu_fallback,
                deadline_s=config.deadline_s, shared_memory=config.shared_memory)
    said = _StandardError()
    # Upstream counts all that happens before the ranks run, not only Spark's part of it.
    start_timeout_s = config.start_timeout_s + config.deadline_s
    try:
        with _signal_handlers_kept():
            texts = horovod.spark.run(
                run_rank, args=(fn, tuple(args), told), num_proc=num_ranks, start_timeout=math.ceil(start_timeout_s),
                env=_environment(told, threads=config.threads_per_rank), stderr=said, verbose=0, use_gloo=True)
    except TimeoutException as error:
        raise DeadlinePassed(f"horovod.spark did not start its ranks within {start_timeout_s:g} seconds, train.ring's start_timeout_s and "
                             f"deadline_s together: {error}") from error
    except Exception as error:  # upstream raises bare RuntimeError and Exception
        results_or_error([*said.ends, *_deaths(error)])
        raise RingError(f"horovod.spark ended the ring: {' '.join(str(error).split())[:600]} -- see the executors' logs.") from error
    return [json.loads(text) for text in texts]


def run_rank(fn: Callable[..., Json], args: Sequence[Any], told: Told) -> str:
    """On a rank: make its context, call the function; its result as JSON."""
    rank = int(os.environ["HOROVOD_RANK"])
    host = os.uname().nodename
    try:
        return result_to_json(fn(_context(rank, told), *args))
    except EnvironmentProblem as problem:
        end = RankEnd(rank=rank, host=host, kind="refused", summary=str(problem))
    except Exception as error:  # noqa: BLE001 (whatever it is, the driver is to hear it)
        end = RankEnd(rank=rank, host=host, kind="raised", summary=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
    sys.stderr.write(f"{MARK}{end.to_json()}\n")
    sys.exit(1)


def _environment(told: Told, *, threads: int) -> dict[str, str]:
    """What upstream adds to the environment of Spark's Python workers for a rank."""
    defaults = {name: os.environ.get(name, value) for name, value in rank_environment.defaults(told.deadline_s).items()}
    no_gpu_yet = {"CUDA_VISIBLE_DEVICES": "", "SPARKRING_TOKEN": told.token}
    return defaults | rank_environment.settings(threads=threads, deadline_s=told.deadline_s) | no_gpu_yet


def _context(rank: int, told: Told) -> RankContext:
    """Exchange hosts and devices with the other ranks, through the store that Horovod's own ranks meet at."""
    problem = _cuda_problem() if told.device == "cuda" else None
    everyone = _exchange(f"sparkring-{told.token}", rank, [memory_identity(), problem], deadline_s=told.deadline_s)
    numbers = {memory: number for number, memory in enumerate(dict.fromkeys(memory for memory, _ in everyone))}
    device, note = "cpu", ""
    if told.device == "cuda":
        device, note = common_device([problem for _, problem in everyone], allow_cpu_fallback=told.allow_cpu_fallback)
    if note:
        sys.stderr.write(f"{note}\n")
    return RankContext(rank=rank, hosts=tuple(numbers[memory] for memory, _ in everyone), device=device, token=told.token,
                       deadline_s=told.deadline_s, shared_memory=told.shared_memory)


def _exchange(scope: str, rank: int, mine: Json, *, deadline_s: float) -> list[Json]:
    """Put one's own value and get those of all ranks, as JSON."""
    _ask("PUT", f"/{scope}/{rank}", json.dumps(mine).encode())
    everyone = []
    deadline = time.monotonic() + deadline_s
    for other in range(int(os.environ["HOROVOD_SIZE"])):
        while (value := _ask("GET", f"/{scope}/{other}")) is None:
            if time.monotonic() > deadline:
                raise DeadlinePassed(f"rank {other} did not show up within {deadline_s:g} seconds.")
            time.sleep(ASK_AGAIN_S)
        everyone.append(json.loads(value))
    return everyone


def _ask(method: str, path: str, body: bytes | None = None) -> bytes | None:
    address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.read() if response.status == http.client.OK else None
    finally:
        connection.close()


def _cuda_problem() -> str | None:
    """Take the GPU that Spark assigned to this rank's task; why that is not to be had, or None."""
    from horovod.spark.task import get_available_devices

    assigned = get_available_devices()
    os.environ["CUDA_VISIBLE_DEVICES"] = assigned[0] if assigned else ""
    return cuda_problem() if assigned else f"Spark assigned no GPU to a task on {os.uname().nodename}"


class _StandardError:
    """What the ranks write to standard error: their ends are kept, the rest goes to the driver's own."""

    def __init__(self) -> None:
        self.ends: list[RankEnd] = []
        self._lock = threading.Lock()
        self._rest = ""

    def write(self, text: str) -> None:
        """Take text as it comes, from several threads."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._take(line)

    def flush(self) -> None:
        """As streams do."""
        sys.stderr.flush()

    def _take(self, line: str) -> None:
        _, mark, end = line.partition(MARK)
        if mark:
            self.ends.append(RankEnd.from_json(end))
        elif line.strip():
            sys.stderr.write(f"{line}\n")


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Upstream replaces the driver's handlers and leaves its own behind: without this, Ctrl-C does nothing any more."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python


def _deaths(error: Exception) -> Iterator[RankEnd]:
    """Upstream says ``Process name: 1 Exit code: 137`` of the first rank that ended badly: the shell's way of telling of signal 9."""
    told = re.search(r"Process name: (\d+)\s+Exit code: (-?\d+)", str(error))
    if told:
        rank, code = int(told.group(1)), int(told.group(2))
        # Code 1 is how run_rank ends when it has reported: then that report goes first.
        yield RankEnd(rank=rank, host="its executor", kind="died", exit_code=128 - code if 128 < code < 192 else code, order=int(code == 1))
