"""One task of the stage: start a rank process, meet the other tasks, watch, and return how the rank ended.

    task 0                              task 1                                  (one Spark slot each)
      start the rank process              start the rank process
      bind the rendezvous
      gather(facts, port)  <==========>   gather(facts)                         on one machine a socket, else Spark's own channel
      order: placement, environment       order: placement, environment
      watch the rank and the board        watch the rank and the board          HTTP to task 0, see meeting/status_board.py
      return its end as one JSON row      return its end as one JSON row

Spark's allGather polls once a second, so tasks gather facts, on several hosts whether these reach each other, and on GPUs what each
found; from then on they use the status board. On one host they meet without Spark (``meeting/local.py``). A task reports errors instead
of raising them: Spark would show the driver a Java stack instead of the rank's own message. The exception is a task that others do not
answer (``cut_off.py``). If a task is lost, Spark ends the whole stage, and never reruns a failed barrier *result* stage ("Could not
recover from a failed barrier ResultStage"): a function runs at most once, and a test checks that Spark does so. Where Spark has no
barrier stages, the tasks meet at the driver (``meeting/driver.py``), which guarantees the same.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from sparkring.errors import DeadlinePassed, EnvironmentProblem, ExecutorLost
from sparkring.pipelines.parallel.context import RankContext
from sparkring.spark_jobs.launch.barrier.cut_off import LEAVE_S, SPARK_FIRST_S, CutOff, lost_end, silent_end
from sparkring.spark_jobs.launch.barrier.watch import Event, Watch
from sparkring.spark_jobs.launch.meeting.driver import DriverMeetingClient
from sparkring.spark_jobs.launch.meeting.hosts import (
    RankPlacement,
    TaskFacts,
    chosen_tasks,
    describe_task,
    memory_identity,
    peer_addresses,
    place_ranks,
    remove_leftover_memory,
)
from sparkring.spark_jobs.launch.meeting.local import MEET_S, LocalMeeting, meet
from sparkring.spark_jobs.launch.meeting.reach import REACH_S, Doorbell, unreachable
from sparkring.spark_jobs.launch.meeting.rendezvous import Rendezvous, rendezvous_address
from sparkring.spark_jobs.launch.meeting.spark import SparkMeeting
from sparkring.spark_jobs.launch.meeting.status_board import ANSWER_TIMEOUT_S, EFFECT, StatusBoard, StatusBoardClient
from sparkring.spark_jobs.launch.meeting.versions import Versions, other_than_driver, other_than_rank
from sparkring.spark_jobs.launch.rank import environment as rank_environment
from sparkring.spark_jobs.launch.rank.end import RankEnd
from sparkring.spark_jobs.launch.rank.forked import KeptServer
from sparkring.spark_jobs.launch.rank.gpu import AssignedGpu, GpuCheck, common_device, shared_gpu
from sparkring.spark_jobs.launch.rank.graceful_stop import graceful_stop
from sparkring.spark_jobs.launch.rank.horovod_build import require_fitting_horovod
from sparkring.spark_jobs.launch.rank.process import RankProcess
from sparkring.spark_jobs.spark.versions.supported import require_supported_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

SCHEMA = "end string"
"""Schema of the rows that tasks return: ``RankEnd`` as JSON."""

KEPT_SERVER = KeptServer()
"""The rank server of this Spark worker. Only a module keeps state from one task of a worker to the next; ``run_task`` passes it on."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The order to every task; it travels from the driver inside Spark's task closure."""

    num_ranks: int
    left_out: tuple[str, ...] = ()
    """Hosts that get no rank if there are others; if those have too few tasks, no task gets a rank."""
    payload: bytes
    """The function and its arguments, by cloudpickle."""
    token: str
    """Names the launch: its processes, its shared memory, its Spark job. Visible to every user of the host."""
    secret: str
    """Authenticates to the rendezvous and the status board."""
    threads: int
    device: Literal["cpu", "cuda"]
    gpus: tuple[str, ...] | None = None
    """The GPUs of the tasks, by partition, if the launcher deals them out: all tasks are on the driver's machine; None: Spark assigns
    them."""
    allow_cpu_fallback: bool
    deadline_s: float
    heartbeat_s: float
    shared_memory: bool
    fork_ranks: bool = True
    meet_within_s: float
    """Seconds that a task waits for the others."""
    meeting: tuple[str, int] | None = None
    """Address of the driver's meeting; None for tasks of a barrier stage, which meet without it."""
    not_after: float
    """When the driver gives up, in seconds since the epoch. Spark may hold a stage that does not fit for ten minutes and then start it,
    even if it was cancelled (SPARK-24819)."""
    driver_memory: str
    """``memory_identity`` of the driver."""
    driver_path: tuple[str, ...]
    """``sys.path`` of the driver, for ranks beside it: a notebook's own modules import there as they do in the notebook."""
    versions: Versions
    """Those of the driver."""


def run_task(launch: Launch, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run one task; Spark maps this function over the partitions."""
    from pyspark import BarrierTaskContext, TaskContext

    for _ in rows:
        pass  # Spark reuses a Python worker only if it has read its input to the end
    context = TaskContext.get() if launch.meeting else BarrierTaskContext.get()
    assert context is not None
    end = _Task(launch, context, kept=KEPT_SERVER if launch.fork_ranks else None).run()
    yield one_row(end.to_json())


def one_row(end: str) -> pa.RecordBatch:
    """One row of ``SCHEMA``, made of its bytes: ``pa.array`` imports pandas first, for half a second in which all else is done."""
    import pyarrow as pa

    text = end.encode()
    column = pa.StringArray.from_buffers(1, pa.py_buffer(array("i", [0, len(text)])), pa.py_buffer(text))
    return pa.RecordBatch.from_arrays([column], ["end"])


def objection(launch: Launch, facts: Sequence[TaskFacts], *, on_one_host: bool) -> str | None:
    """The reason that these tasks cannot make a ring, or None.

    Args:
        launch: The driver's order.
        facts: The facts of all tasks, by partition.
        on_one_host: Whether Spark names one host for all executors, so that the ring uses loopback.
    """
    for fact in facts:
        if (other := other_than_driver(fact.hostname, fact.versions, launch.versions)):
            return other
        if (other := other_than_rank(fact.hostname, fact.versions, facts[0].hostname, facts[0].versions)):
            return other
        if on_one_host and fact.network != facts[0].network:
            return (f"Spark names one host for all executors, but {fact.hostname} and {facts[0].hostname} do not share a network; "
                    "give each executor an address of its own (SPARK_LOCAL_IP).")
        if launch.device == "cuda" and (without := _without_gpu(launch, fact)):
            return without
        if launch.meeting is None and fact.clock > launch.not_after:
            return (f"the task on {fact.hostname} started {fact.clock - launch.not_after:.0f} seconds after this launch was given up; if "
                    "it was not given up, the clocks of that host and of the driver differ: synchronise them.")
    return None


def _without_gpu(launch: Launch, fact: TaskFacts) -> str | None:
    """The reason that a task has no GPU though its rank needs one, or None."""
    if launch.gpus is not None and fact.memory != launch.driver_memory:
        return (f"device is cuda, and Spark runs with a local master on {fact.hostname}, where the driver cannot see which GPUs there are; "
                "run the driver there, or give that Spark a master that assigns GPUs (spark://...).")
    if launch.gpus is None and fact.gpu is None and not launch.allow_cpu_fallback:
        return (f"device is cuda, but Spark assigned no GPU to the task on {fact.hostname}; set spark.executor.resource.gpu.amount and a "
                "discovery script, or train.ring.allow_cpu_fallback=true.")
    return None


def gpu_objection(facts: Sequence[TaskFacts], uuids: Sequence[str | None]) -> str | None:
    """The reason that the tasks chosen for ranks cannot use GPUs, or None; ``uuids`` as in ``GpuCheck``."""
    return shared_gpu(AssignedGpu(host=fact.hostname, memory=fact.memory, address=fact.gpu, uuid=uuid)
                      for fact, uuid in zip(facts, uuids, strict=True))


def _meeting_of_all(launch: Launch, context: TaskContext) -> SparkMeeting | DriverMeetingClient:
    """The meeting point of tasks that do not share a host."""
    if launch.meeting is not None:
        return DriverMeetingClient(context, launch.meeting, secret=launch.secret)
    from pyspark import BarrierTaskContext

    assert isinstance(context, BarrierTaskContext)
    return SparkMeeting(context)


def _gpu_of(launch: Launch, context: TaskContext) -> str | None:
    """The GPU of this task: one that the launcher deals out, or that Spark assigned."""
    if launch.gpus is not None:
        return next(iter(launch.gpus[context.partitionId():]), None)
    assigned = context.resources().get("gpu") if launch.device == "cuda" else None
    return str(assigned.addresses[0]) if assigned else None


class _Task:
    def __init__(self, launch: Launch, context: TaskContext, *, kept: KeptServer | None) -> None:
        self._launch, self._partition, self._kept = launch, context.partitionId(), kept
        self._everywhere = _meeting_of_all(launch, context)
        self._spark_host, self._on_one_host = self._everywhere.host, False
        self._gpu = _gpu_of(launch, context)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._rendezvous: Rendezvous | None = None
        self._doorbell: Doorbell | None = None
        self._meeting: LocalMeeting | None = None

    def run(self) -> RankEnd:
        process = RankProcess(self._launch.device, env=self._environment(), on_report=self._events.put, on_exit=self._events.put,
                              kept=self._kept)
        try:
            with graceful_stop(process.ask_to_stop):
                return self._run(process)
        except EnvironmentProblem as problem:
            return RankEnd(rank=self._partition, host=self._spark_host, kind="refused", summary=str(problem))
        except DeadlinePassed as late:
            return RankEnd(rank=self._partition, host=self._spark_host, kind="waited", summary=str(late))
        except ExecutorLost as lost:
            return RankEnd(rank=self._partition, host=self._spark_host, kind="lost", summary=str(lost))
        finally:
            process.end()
            remove_leftover_memory(self._launch.token)
            for server in (self._meeting, self._rendezvous, self._doorbell):
                if server is not None:
                    server.close()

    def _run(self, process: RankProcess) -> RankEnd:
        everyone = self._meet()
        chosen = chosen_tasks(everyone, self._launch.num_ranks, left_out=self._launch.left_out)
        if self._rendezvous is not None and self._partition not in chosen[:1]:
            self._rendezvous.close()
            self._rendezvous = None
        self._require_reach(everyone, chosen)
        mine = everyone[self._partition]
        if self._partition not in chosen:
            if chosen:
                self._stand_by()
            return RankEnd(rank=-1, host=mine.name_in(self._launch.left_out) or mine.hostname, kind="idle")
        facts = [everyone[partition] for partition in chosen]
        placements = place_ranks([fact.memory for fact in facts])
        placement = placements[chosen.index(self._partition)]
        process.label = f"rank {placement.rank}"
        if self._rendezvous is not None:
            self._rendezvous.start(allowed=peer_addresses(facts))
        device, note = self._agree_on_device(mine, facts=facts, chosen=chosen)
        process.send(self._order(placement, mine, facts, device=device, note=note), self._launch.payload)
        board = StatusBoardClient(facts[0].address, facts[0].port, secret=self._launch.secret, heartbeat_s=self._launch.heartbeat_s)
        watch = Watch(process, self._events, rank=placement.rank, host=mine.hostname, deadline_s=self._launch.deadline_s)
        end = watch.wait_for_end(board)
        hosts = {placed.rank: fact.hostname for placed, fact in zip(placements, facts, strict=True)}
        if self._rendezvous is not None:
            silent = self._rendezvous.board.wait_until_left(within_s=LEAVE_S)
            if silent and end.kind != "done" and not self._rendezvous.board.knows_cause:
                self._end_stage(silent_end(end, silent, hosts))
        elif watch.lost_contact and end.severity == EFFECT:
            time.sleep(SPARK_FIRST_S)
            self._end_stage(lost_end(end, watch.lost_contact, hosts))
        return end

    def _end_stage(self, end: RankEnd) -> None:
        """Have Spark fail the stage with this end: tasks that cannot be reached would keep the driver waiting for their rows.

        Not where Spark would start this task again (a plain stage): there the driver gives up by itself.
        """
        if self._launch.meeting is None:
            raise CutOff(end)

    def _meet(self) -> tuple[TaskFacts, ...]:
        """Exchange facts with the other tasks.

        Raises:
            EnvironmentProblem: these tasks cannot make a ring; raised in each of them.
            DeadlinePassed: a task did not come.
            ExecutorLost: Spark restarted this task, which had joined the ring before.
        """
        within_s = self._launch.meet_within_s
        hosts = self._everywhere.hosts(within_s=within_s)
        self._on_one_host = len(set(hosts)) == 1
        introduction, until = self._introduction(), time.monotonic() + within_s
        if self._on_one_host:
            self._meeting = meet(self._partition, num_tasks=len(hosts), secret=self._launch.secret,
                                 deadline_s=self._launch.deadline_s + ANSWER_TIMEOUT_S, within_s=min(MEET_S, within_s))
        answers = self._gather(introduction, within_s=max(0.0, until - time.monotonic()))
        problems = [entry["problem"] for entry in answers if "problem" in entry]
        if problems:
            raise EnvironmentProblem(problems[0])
        facts = tuple(TaskFacts.from_json(entry) for entry in answers)
        refusal = objection(self._launch, facts, on_one_host=self._on_one_host)
        if refusal:
            raise EnvironmentProblem(refusal)
        return facts

    def _gather(self, mine: Any, *, within_s: float) -> list[Any]:
        """The values of all tasks, by partition; a meeting on one host has its own deadline."""
        text = json.dumps(mine)
        answers = self._meeting.gather(text) if self._meeting else self._everywhere.gather(text, within_s=within_s)
        return [json.loads(each) for each in answers]

    def _introduction(self) -> dict[str, Any]:
        """This task's facts, or its problem; a problem is reported, not raised, so that no other task waits in vain."""
        try:
            require_fitting_horovod()
            require_supported_arrow(metadata.version("pyarrow"), where=f"on {socket.gethostname()}")
            mine = describe_task(self._spark_host, on_one_host=self._on_one_host, gpu=self._gpu)
            introduced = asdict(mine)
            if not self._on_one_host:
                self._doorbell = Doorbell(mine.address, secret=self._launch.secret, partition=self._partition)
                introduced["doorbell"] = self._doorbell.port
            if self._partition != 0 and not self._launch.left_out:
                return introduced
            board = StatusBoard(self._launch.secret, size=self._launch.num_ranks, heartbeat_s=self._launch.heartbeat_s)
            self._rendezvous = Rendezvous(mine.address, board)
            return introduced | {"port": self._rendezvous.port}
        except EnvironmentProblem as problem:
            return {"problem": str(problem)}
        except OSError as error:
            return {"problem": f"cannot listen on {self._spark_host}: {error}; free a port on the ring's interface of that host."}

    def _require_reach(self, everyone: Sequence[TaskFacts], chosen: Sequence[int]) -> None:
        """Try whether the hosts of the ``chosen`` tasks reach each other, and exchange what was found.

        Raises:
            EnvironmentProblem: some do not; raised in each task.
        """
        if self._doorbell is None:
            return
        if len({everyone[partition].memory for partition in chosen}) < 2:
            self._doorbell.close()
            self._doorbell = None
            return
        found = unreachable(self._partition, everyone, chosen, secret=self._launch.secret)
        problems = [problem for problem in self._gather(found, within_s=2 * REACH_S + ANSWER_TIMEOUT_S) if problem]
        self._doorbell.close()
        self._doorbell = None
        if problems:
            raise EnvironmentProblem(problems[0])

    def _agree_on_device(self, mine: TaskFacts, *, facts: Sequence[TaskFacts], chosen: Sequence[int]) -> tuple[str, str]:
        """The device of all ranks, and a note to show; ``facts`` are those of the ``chosen`` tasks.

        Raises:
            EnvironmentProblem: a rank has no GPU of its own, or cannot use it, and CPUs are not allowed instead.
        """
        if self._launch.device == "cpu":
            return "cpu", ""
        none = f"Spark assigned none to a task on {mine.hostname}" if self._launch.gpus is None else f"{mine.hostname} has none left for it"
        which = f"GPU {mine.gpu} on {mine.hostname}" if mine.gpu else none
        found = GpuCheck(problem=None, uuid=None)
        try:
            event = self._events.get(timeout=self._launch.deadline_s)
        except queue.Empty:
            event = {"kind": "device", "summary": f"its driver did not answer within {self._launch.deadline_s:g} s", "uuid": None}
        if isinstance(event, dict) and event["kind"] == "device":
            found = GpuCheck(problem=event["summary"] and f"{which}: {event['summary']}", uuid=event["uuid"])
        else:
            self._events.put(event)  # the rank has ended already; the watch handles that
        everyone = self._gather_devices(found)
        checks = [everyone[partition] for partition in chosen]
        if refusal := gpu_objection(facts, [check.uuid for check in checks]):
            raise EnvironmentProblem(refusal)
        return common_device([check.problem for check in checks], allow_cpu_fallback=self._launch.allow_cpu_fallback)

    def _stand_by(self) -> None:
        """Take part in the exchanges of all tasks, without a rank."""
        if self._launch.device == "cuda":
            self._gather_devices(GpuCheck(problem=None, uuid=None))

    def _gather_devices(self, found: GpuCheck) -> list[GpuCheck]:
        return [GpuCheck(*each) for each in self._gather(found, within_s=self._launch.deadline_s + ANSWER_TIMEOUT_S)]

    def _environment(self) -> dict[str, str]:
        """The rank process's environment at its start: everything that torch's import depends on."""
        launch = self._launch
        path = [entry for entry in sys.path if entry]
        if memory_identity() == launch.driver_memory:
            path += [entry for entry in launch.driver_path if entry not in path]
        return rank_environment.defaults(launch.deadline_s) | os.environ | rank_environment.settings(
            threads=launch.threads, deadline_s=launch.deadline_s) | {
                "PYTHONPATH": os.pathsep.join(path),
                "CUDA_VISIBLE_DEVICES": self._gpu or "",
                "SPARKRING_TOKEN": launch.token,  # marks the process and all that it starts, so that they can be found
                "SPARKRING_TASK": str(os.getpid()),
            }

    def _order(self, placement: RankPlacement, mine: TaskFacts, facts: Sequence[TaskFacts], *, device: str, note: str) -> bytes:
        """The rank's placement and the variables that depend on it, as JSON."""
        launch, interface = self._launch, mine.interface
        sockets = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": rank_environment.nccl_interface(interface)}
        sockets = {name: os.environ.get(name, value) for name, value in sockets.items()}
        env = placement.horovod_environment() | sockets | {
            "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": rendezvous_address(facts[0].address, facts[0].port, launch.secret),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(facts[0].port),
        }
        context = RankContext(rank=placement.rank, hosts=placement.hosts, device=device, token=launch.token,
                              deadline_s=launch.deadline_s, shared_memory=launch.shared_memory)
        return json.dumps({"context": asdict(context), "env": env, "note": note}).encode()
