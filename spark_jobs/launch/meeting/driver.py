"""The meeting at the driver, where the tasks of a ring exchange their facts if they are not a barrier stage.

Spark refuses barrier stages under dynamic allocation (SPARK-24942). There the tasks belong to a plain stage: they start one by one, as
executors arrive, and Spark restarts a lost task elsewhere.

    task 0               -- round 0, its text -->   wait
    task 2               -- round 0, its text -->   wait
    task 2, restarted    -- round 0, its text -->   wait; the lost one's is forgotten
    task 1               -- round 0, its text -->   all are here: everyone's texts, to each
    task 2, restarted    -- round 0, its text -->   taken: it would be a second rank in the place of one that has run
    after the deadline   -- round 0, its text -->   closed: not all came in time, and the driver reports how many did

Requests and answers are lines of JSON. A request without the launch's secret gets no answer.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from sparkring.errors import DeadlinePassed, EnvironmentProblem, ExecutorLost
from sparkring.spark_jobs.launch.meeting.guarded_server import GuardedHandler, GuardedServer
from sparkring.spark_jobs.launch.meeting.hosts import address_towards

if TYPE_CHECKING:
    from pyspark import TaskContext

CONNECTIONS = 64
"""Connections that may be open at once, in addition to two for each task."""
CONNECT_S = 10.0
ROUNDS: Final = 8
"""Most exchanges in one meeting; tasks need fewer."""


def _lost(partition: int, host: str) -> ExecutorLost:
    return ExecutorLost(f"Spark lost task {partition} of the ring on {host}, probably with its executor, and restarted it, and a "
                        "ring cannot take it back; see the executors' logs.", host=host)


@dataclass(frozen=True, kw_only=True)
class _Request:
    secret: str
    round: int
    partition: int
    attempt: int
    """Spark's number of this attempt; no two attempts have the same."""
    text: str


@dataclass(frozen=True, kw_only=True)
class _Answer:
    kind: Literal["all", "taken", "closed"]
    texts: list[str]
    """If ``kind`` is ``all``, the texts of all tasks by partition; if it is ``taken``, the host of the attempt before."""


class DriverMeeting(GuardedServer):
    """The driver's side: a server that answers inside its ``with`` block.

    Args:
        address: The driver's IPv4 address towards the executors.
        secret: The launch's secret.
        num_tasks: Number of tasks that must come.
        within_s: Seconds for them to come.
        deadline_s: Seconds to wait for a task in a later round.
    """

    def __init__(self, address: str, *, secret: str, num_tasks: int, within_s: float, deadline_s: float) -> None:
        self.secret, self.num_tasks = secret, num_tasks
        self.max_connections = CONNECTIONS + 2 * num_tasks
        self._deadline_s, self._until = deadline_s, time.monotonic() + within_s
        self._changed = threading.Condition()
        self._rounds: list[dict[int, str]] = [{} for _ in range(ROUNDS)]
        self._attempts: dict[int, int] = {}
        self._lost: ExecutorLost | None = None
        super().__init__((address, 0), _Handler)

    def __enter__(self) -> Self:
        """Start to answer."""
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="driver-meeting", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close all connections, wake whoever waits for an answer, and free the port."""
        self.shutdown()
        self._thread.join()
        self.hang_up()
        with self._changed:
            self._changed.notify_all()
        self.server_close()

    @property
    def address(self) -> tuple[str, int]:
        """Address and port."""
        return str(self.server_address[0]), int(self.server_address[1])

    @property
    def num_come(self) -> int:
        """Tasks that have come."""
        with self._changed:
            return len(self._rounds[0])

    @property
    def complete(self) -> bool:
        """Whether all have come."""
        with self._changed:
            return self._met

    @property
    def closed(self) -> bool:
        """Whether the time is over before all have come."""
        return not self.complete and time.monotonic() >= self._until

    @property
    def lost(self) -> ExecutorLost | None:
        """The error for a task that Spark restarted after all had come, or None."""
        return self._lost

    def answer(self, request: _Request) -> _Answer:
        """Wait until the answer to a task is known, and return it."""
        with self._changed:
            if self._met or time.monotonic() < self._until:
                self._take(request)
                self._changed.wait_for(lambda: self._known(request), self._timeout_s(request))
            return self._answer_to(request)

    @property
    def _met(self) -> bool:
        return len(self._rounds[0]) == self.num_tasks

    def _take(self, request: _Request) -> None:
        partition, attempt = request.partition, self._attempts.get(request.partition, request.attempt)
        if request.round == 0 and not self._met and request.attempt >= attempt:
            self._attempts[partition], self._rounds[0][partition] = request.attempt, request.text
        elif request.attempt == attempt:
            self._rounds[request.round][partition] = request.text
        self._changed.notify_all()

    def _known(self, request: _Request) -> bool:
        """Whether the answer is known, or nobody is left to hear it."""
        return (self._closing.is_set() or self._attempts[request.partition] != request.attempt
                or len(self._rounds[request.round]) == self.num_tasks)

    def _timeout_s(self, request: _Request) -> float:
        return max(0.0, self._until - time.monotonic()) if request.round == 0 else self._deadline_s

    def _answer_to(self, request: _Request) -> _Answer:
        everyone = self._rounds[request.round]
        if self._attempts.get(request.partition, request.attempt) != request.attempt:
            host = self._rounds[0][request.partition]
            if self._met and request.attempt > self._attempts[request.partition]:
                self._lost = _lost(request.partition, host)
            return _Answer(kind="taken", texts=[host])
        if len(everyone) < self.num_tasks:
            return _Answer(kind="closed", texts=[])
        return _Answer(kind="all", texts=[everyone[partition] for partition in range(self.num_tasks)])


class _Handler(GuardedHandler):
    server: DriverMeeting

    def handle(self) -> None:
        """Answer a task; hang up on everyone else."""
        try:
            request = _Request(**json.loads(self.rfile.readline()))
            known = hmac.compare_digest(request.secret.encode(), self.server.secret.encode())
        except (ValueError, TypeError, AttributeError, RecursionError):
            return
        if known and 0 <= request.round < ROUNDS and 0 <= request.partition < self.server.num_tasks:
            self.wfile.write(json.dumps(asdict(self.server.answer(request))).encode() + b"\n")


class DriverMeetingClient:
    """A task's side; see ``SparkMeeting``.

    Args:
        context: The task's context.
        address: The meeting's address and port.
        secret: The launch's secret.
    """

    def __init__(self, context: TaskContext, address: tuple[str, int], *, secret: str) -> None:
        self._address, self._secret, self._round = address, secret, 0
        self._partition, self._attempt = context.partitionId(), context.taskAttemptId()
        try:
            self.host = address_towards(address[0])
        except OSError:  # the driver cannot be reached; the first request reports that
            self.host = socket.gethostname()

    def hosts(self, *, within_s: float) -> list[str]:
        """The address of each task, by partition."""
        return self.gather(self.host, within_s=within_s)

    def gather(self, text: str, *, within_s: float) -> list[str]:
        """Give this task's text and get everyone's, by partition.

        Args:
            text: This task's text.
            within_s: Seconds to wait for the others.
        Raises:
            DeadlinePassed: not all of them came.
            ExecutorLost: Spark restarted this task, which had joined the ring before.
            EnvironmentProblem: the driver cannot be reached.
        """
        request = _Request(secret=self._secret, round=self._round, partition=self._partition, attempt=self._attempt, text=text)
        self._round += 1
        answer = self._ask(request, within_s)
        if answer.kind == "taken":
            raise _lost(self._partition, answer.texts[0])
        if answer.kind == "closed":
            raise _not_all(within_s)
        return answer.texts

    def _ask(self, request: _Request, within_s: float) -> _Answer:
        try:
            connection = socket.create_connection(self._address, timeout=CONNECT_S)
        except OSError as error:
            raise unreachable(self.host, self._address, str(error)) from error
        with connection, connection.makefile("rwb") as stream:
            try:
                stream.write(json.dumps(asdict(request)).encode() + b"\n")
                stream.flush()
                connection.settimeout(within_s + CONNECT_S)
                return _Answer(**json.loads(stream.readline()))
            except TimeoutError:
                raise _not_all(within_s) from None
            except (OSError, ValueError) as error:
                raise unreachable(self.host, self._address, str(error)) from error


def unreachable(host: str, address: tuple[str, int], error: str) -> EnvironmentProblem:
    """The error for a host whose tasks cannot reach the meeting."""
    return EnvironmentProblem(
        f"a task on {host} cannot reach the driver at {address[0]}:{address[1]} ({error}), where the tasks of a ring meet under dynamic "
        "allocation; let executors reach all ports of the driver's machine, or start the session with "
        "spark.dynamicAllocation.enabled=false.")


def _not_all(within_s: float) -> DeadlinePassed:
    return DeadlinePassed(f"a task of this ring did not come within {within_s:g} s; this one waited for it.")
