"""``launcher: horovod.spark``: upstream's own launcher (``horovod.spark.run`` with Gloo) behind ``run_ring``'s contract.

For clusters that already use it. Its network services are hardened first (``hardening.py``), and our code starts and watches the ranks
(``ranks.py``, ``../rank/suspension.py``). These differences from our own launcher remain:

- It needs a SparkContext, so Spark Connect cannot use it, and one driver runs one such ring at a time.
- Its services, on the driver and in each task, unpickle messages signed with the run's key.
- Driver and executors must have an interface of the same name; HOROVOD_GLOO_IFACE on the driver chooses it.
- Errors come back through the ranks' standard error; of a dead rank only the exit code is known, not the host.
- A rank that returns early ends the ring for the others, which then have ``deadline_s`` to return too: end the function with a barrier.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import secrets
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from sparkring.conf.schema import RingConfig
from sparkring.errors import DeadlinePassed, EnvironmentProblem, RingError
from sparkring.pipelines.parallel.context import RankContext
from sparkring.spark_jobs.launch.gpus.source import rank_resources
from sparkring.spark_jobs.launch.horovod.hardening import hardened_launch
from sparkring.spark_jobs.launch.horovod.ranks import HorovodRanks
from sparkring.spark_jobs.launch.meeting.driver_address import driver_address
from sparkring.spark_jobs.launch.meeting.encryption import require_plaintext_allowed
from sparkring.spark_jobs.launch.meeting.hosts import memory_identity
from sparkring.spark_jobs.launch.meeting.versions import Versions, other_than_driver, other_than_rank, versions_here
from sparkring.spark_jobs.launch.rank import environment as rank_environment
from sparkring.spark_jobs.launch.rank.end import Json, RankEnd, result_to_json, results_or_error
from sparkring.spark_jobs.launch.rank.gpu import AssignedGpu, GpuCheck, check_gpu, common_device, shared_gpu
from sparkring.spark_jobs.launch.rank.horovod_build import require_fitting_horovod
from sparkring.spark_jobs.launch.rank.process import TAIL_LINES
from sparkring.spark_jobs.launch.rank.suspension import SUSPENDED_GRACE_S, guard_against_suspension
from sparkring.spark_jobs.spark.slots import require_slots, spark_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = "sparkring-end "
"""Starts a line of a rank's standard error that holds its ``RankEnd``."""
ASK_AGAIN_S = 0.05


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """The driver's settings for each rank."""

    token: str
    device: Literal["cpu", "cuda"]
    allow_cpu_fallback: bool
    deadline_s: float
    shared_memory: bool
    versions: Versions
    """Those of the driver."""
    gpus: tuple[str, ...] | None = None
    """The GPUs of the ranks, if the launcher deals them out; None: Spark assigns them."""


def run_by_horovod(fn: Callable[..., Json], args: Sequence[Any], *, num_ranks: int, spark: SparkSession, config: RingConfig,
                   gpus: tuple[str, ...] | None = None) -> list[Json]:
    """Run ``fn`` by ``horovod.spark.run``; see ``run_ring``, which deals ``gpus`` out."""
    if spark_context(spark) is None:
        raise EnvironmentProblem("launcher horovod.spark needs a SparkContext, which Spark Connect does not have; use launcher: barrier.")
    require_plaintext_allowed(spark, config)
    rank_resources(spark, config)  # refuses where Spark would assign no GPU
    require_slots(spark, num_ranks=num_ranks, within_s=config.start_timeout_s)
    import horovod.spark
    from horovod.runner.common.util.timeout import TimeoutException

    settings = RankSettings(token=uuid4().hex, device=config.device, allow_cpu_fallback=config.allow_cpu_fallback,
                            deadline_s=config.deadline_s, shared_memory=config.shared_memory, versions=versions_here(), gpus=gpus)
    said = _StandardError()
    address, interface = driver_address(spark)
    ranks = HorovodRanks(secret=secrets.token_hex(16), address=address, deadline_s=config.deadline_s, cause_known=said.names_a_cause)
    # Upstream counts all that happens before the ranks run, not only Spark's part of it.
    start_timeout_s = config.start_timeout_s + config.deadline_s
    try:
        with hardened_launch(interface, ranks):
            texts = horovod.spark.run(
                run_rank, args=(fn, tuple(args), settings), num_proc=num_ranks, start_timeout=math.ceil(start_timeout_s),
                env=_environment(settings, threads=config.threads_per_rank), stderr=said, nics={interface}, verbose=0, use_gloo=True)
    except TimeoutException as error:
        raise DeadlinePassed(f"horovod.spark did not start its ranks within {start_timeout_s:g} seconds, train.ring's start_timeout_s and "
                             f"deadline_s together ({error}); see that all hosts reach each other by their interface {interface} "
                             "(launcher: barrier tries that), give Spark more slots, or raise one of these.") from error
    except EnvironmentProblem:
        raise
    except Exception as error:  # upstream raises bare RuntimeError and Exception
        results_or_error(said.with_ends_of(ranks))
        raise RingError(f"horovod.spark ended the ring: {' '.join(str(error).split())[:600]}; see the executors' logs.") from error
    return [json.loads(text) for text in texts]


def run_rank(fn: Callable[..., Json], args: Sequence[Any], settings: RankSettings) -> str:
    """On a rank: make its context and call the function; returns the result as JSON."""
    rank = int(os.environ["HOROVOD_RANK"])
    host = os.uname().nodename
    suspended = RankEnd(rank=rank, host=host, kind="suspended")
    guard_against_suspension(limit_s=settings.deadline_s + SUSPENDED_GRACE_S, last_words=f"{MARK}{suspended.to_json()}")
    try:
        _require_fitting_versions(host, settings.versions)
        return result_to_json(fn(_context(rank, settings), *args))
    except EnvironmentProblem as problem:
        end = RankEnd(rank=rank, host=host, kind="refused", summary=str(problem))
    except Exception as error:  # noqa: BLE001 (the driver reports every error)
        end = RankEnd(rank=rank, host=host, kind="raised", summary=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
    sys.stderr.write(f"{MARK}{end.to_json()}\n")
    sys.exit(1)


def _require_fitting_versions(host: str, driver: Versions) -> None:
    if other := other_than_driver(host, versions_here(), driver):
        raise EnvironmentProblem(other)
    require_fitting_horovod()


def _environment(settings: RankSettings, *, threads: int) -> dict[str, str]:
    """Variables that upstream adds to the environment of Spark's Python workers for a rank."""
    defaults = {name: os.environ.get(name, value) for name, value in rank_environment.defaults(settings.deadline_s).items()}
    no_gpu_yet = {"CUDA_VISIBLE_DEVICES": "", "SPARKRING_TOKEN": settings.token}
    return defaults | rank_environment.settings(threads=threads, deadline_s=settings.deadline_s) | no_gpu_yet


def _context(rank: int, settings: RankSettings) -> RankContext:
    """Exchange hosts, devices and versions with the other ranks, through the rendezvous."""
    gpu, found = _take_gpu(rank, settings.gpus) if settings.device == "cuda" else (None, GpuCheck(problem=None, uuid=None))
    mine = AssignedGpu(host=os.uname().nodename, memory=memory_identity(), address=gpu, uuid=found.uuid)
    answers = _exchange(f"sparkring-{settings.token}", rank, [mine, found.problem, asdict(versions_here())], deadline_s=settings.deadline_s)
    everyone = [(AssignedGpu(*assigned), problem) for assigned, problem, _ in answers]
    _require_one_build([(AssignedGpu(*assigned).host, Versions(**versions)) for assigned, _, versions in answers])
    memories = [assigned.memory for assigned, _ in everyone]
    numbers = {memory: number for number, memory in enumerate(dict.fromkeys(memories))}
    device, note = "cpu", ""
    if settings.device == "cuda":
        if shared := shared_gpu(assigned for assigned, _ in everyone):
            raise EnvironmentProblem(shared)
        device, note = common_device([problem for _, problem in everyone], allow_cpu_fallback=settings.allow_cpu_fallback)
    if note:
        sys.stderr.write(f"{note}\n")
    return RankContext(rank=rank, hosts=tuple(numbers[memory] for memory in memories), device=device, token=settings.token,
                       deadline_s=settings.deadline_s, shared_memory=settings.shared_memory)


def _require_one_build(ranks: Sequence[tuple[str, Versions]]) -> None:
    """Check the versions of all ranks, each with its host, against those of the first."""
    for host, versions in ranks:
        if other := other_than_rank(host, versions, *ranks[0]):
            raise EnvironmentProblem(other)


def _exchange(scope: str, rank: int, mine: Json, *, deadline_s: float) -> list[Json]:
    """Put this rank's value and get those of all ranks, as JSON."""
    _ask("PUT", f"/{scope}/{rank}", json.dumps(mine).encode())
    everyone = []
    deadline = time.monotonic() + deadline_s
    for other in range(int(os.environ["HOROVOD_SIZE"])):
        while (value := _ask("GET", f"/{scope}/{other}")) is None:
            if time.monotonic() > deadline:
                raise DeadlinePassed(f"rank {other} did not come within {deadline_s:g} seconds; see its last lines.")
            time.sleep(ASK_AGAIN_S)
        everyone.append(json.loads(value))
    return everyone


def _ask(method: str, path: str, body: bytes | None = None) -> bytes | None:
    address, _, secret = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, f"/{secret}{path}", body)
        response = connection.getresponse()
        return response.read() if response.status == http.client.OK else None
    finally:
        connection.close()


def _take_gpu(rank: int, dealt: Sequence[str] | None) -> tuple[str | None, GpuCheck]:
    """Take the GPU that is dealt to this rank, or that Spark assigned to its task: its address, and what came of using it."""
    from horovod.spark.task import get_available_devices

    assigned = get_available_devices() if dealt is None else dealt[rank:]
    os.environ["CUDA_VISIBLE_DEVICES"] = assigned[0] if assigned else ""
    if not assigned:
        return None, GpuCheck(problem=f"there is no GPU for a rank on {os.uname().nodename}", uuid=None)
    return assigned[0], check_gpu()


class _StandardError:
    """The ranks' standard error: their ends are kept, the rest is passed on to the driver's own."""

    def __init__(self) -> None:
        self._ends: list[RankEnd] = []
        self._tails: dict[int, deque[str]] = {}
        self._lock = threading.Lock()
        self._rest = ""

    def with_ends_of(self, ranks: HorovodRanks) -> list[RankEnd]:
        """The ends that ranks reported; for the other ranks, the ends that the driver saw."""
        said = {end.rank for end in self._ends}
        return self._ends + [replace(end, output_tail="\n".join(self._tails.get(ranks.tasks.get(end.rank, -1), ())))
                             for end in ranks.ends if end.rank not in said]

    def names_a_cause(self) -> bool:
        """Whether a rank has reported a failure of its own."""
        return any(end.severity == 0 for end in self._ends)

    def write(self, text: str) -> None:
        """Take text as it comes, from several threads."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._take(line)

    def flush(self) -> None:
        """Flush the driver's own standard error."""
        sys.stderr.flush()

    def _take(self, line: str) -> None:
        _, mark, end = line.partition(MARK)
        if mark:
            self._ends.append(RankEnd.from_json(end))
        elif line.strip():
            by_task = re.match(r"\[(\d+)\]<stderr>:(.*)", line)
            if by_task:
                self._tails.setdefault(int(by_task.group(1)), deque(maxlen=TAIL_LINES)).append(by_task.group(2))
            sys.stderr.write(f"{line}\n")
