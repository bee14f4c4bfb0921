"""The ranks of ``launcher: horovod.spark``, driver side: start them by upstream's own services, and end them all when one fails.

Replaces what ``horovod.spark.run`` does once its tasks have registered (``_launch_job``). Upstream starts its own rendezvous there, which
serves anyone, and waits for every rank, even for those that wait for a dead one.

That rendezvous has a second flaw: when the last rank has finished with one scope, it forgets which ranks have finished with *any* scope. A
rank that is alone in its scope between hosts then leaves the addresses of the scope within its host behind, and a second ``hvd.init`` may
find them: "Connection refused" (tests/unit/spark_jobs/test_horovod_hardening.py shows it).
"""

from __future__ import annotations

import copy
import math
import queue
import shlex
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from sparkring.errors import RingError
from sparkring.spark_jobs.launch.meeting.rendezvous import Rendezvous, rendezvous_address
from sparkring.spark_jobs.launch.meeting.status_board import StatusBoard
from sparkring.spark_jobs.launch.rank.end import CAUSE_GRACE_S, RankEnd
from sparkring.spark_jobs.launch.rank.environment import nccl_interface

Execute: TypeAlias = "Callable[..., tuple[int | None, float]]"
"""Runs a command for a slot, given events that abort it; returns exit code (None: unknown) and time."""
LATE_CAUSE_S = 15.0
"""Seconds to wait for the cause, where all ends so far report a lost peer: upstream polls once a second for a rank's end, and then waits
for its output."""
LAST_RANK_S = 30.0
"""Seconds for the next rank to end once all were asked to; upstream gives each five seconds."""


class HorovodRanks:
    """The ranks of one launch.

    Args:
        secret: Authenticates to the rendezvous.
        address: Where the rendezvous listens.
        deadline_s: Seconds for the next rank to end once one has returned.
        cause_known: Whether a rank has reported why the ring ends.
    """

    def __init__(self, *, secret: str, address: str, deadline_s: float, cause_known: Callable[[], bool] = lambda: True) -> None:
        self._secret, self._address, self._deadline_s, self._cause_known = secret, address, deadline_s, cause_known
        self._exits: queue.SimpleQueue[tuple[int, int | None]] = queue.SimpleQueue()
        self._end_all = threading.Event()
        self.ends: list[RankEnd] = []
        """The ends of the ranks that failed, in the order of their failures."""
        self.tasks: dict[int, int] = {}
        """The number of each rank's task, which upstream puts before its output."""

    def run(self, settings: Any, driver: Any, env: dict[str, str], stdout: Any, stderr: Any, executable: str | None) -> None:
        """Run the ranks to their ends; takes what upstream gives its ``_launch_job``.

        Raises:
            RingError: one failed; ``ends`` says how.
        """
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

        slots = get_host_assignments(parse_hosts(settings.hosts), settings.num_proc)
        heard = {address for index in driver.task_indices() for interface in driver.all_task_addresses(index).values()
                 for address, _ in interface}
        rendezvous = Rendezvous(self._address, StatusBoard(self._secret, size=len(slots), heartbeat_s=1.0))
        try:
            rendezvous.start(allowed=heard)
            execute = _execute_in_task(settings, driver, env | self._meeting(driver, rendezvous.port), stdout, stderr)
            command = _command(executable or sys.executable, driver, settings)
            for slot in slots:
                threading.Thread(target=self._run_rank, args=(execute, f"{_env_command(slot)} {command}", slot), daemon=True).start()
            self._until_all_ended(len(slots))
        finally:
            self._end_all.set()
            rendezvous.close()
            self.tasks = driver.get_ranks_to_indices()
        if self.ends:
            raise RingError(f"{len(self.ends)} of {len(slots)} ranks failed; see what they wrote.")

    def _meeting(self, driver: Any, port: int) -> dict[str, str]:
        """Variables by which the ranks find each other."""
        (interface,) = driver.get_common_interfaces()
        return {
            "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": nccl_interface(interface),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": rendezvous_address(self._address, port, self._secret),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        }
    def _run_rank(self, execute: Execute, command: str, slot: Any) -> None:
        code: int | None = None
        try:
            code, _ = execute(command, slot, [self._end_all])
        finally:
            self._exits.put((slot.rank, code))

    def _until_all_ended(self, num_ranks: int) -> None:
        """Take the ranks' ends as they come. After a failure the others get a while to report the cause, after a result the deadline to
        return too; then they are ended.
        """
        running, until = set(range(num_ranks)), math.inf
        while running:
            try:
                rank, code = self._exits.get(timeout=None if until == math.inf else max(0.0, until - time.monotonic()))
            except queue.Empty:
                if self._end_all.is_set():
                    return  # a task that ignores this too is ended by Spark: upstream cancels the job now
                self.ends = self.ends or [self._overdue(rank) for rank in sorted(running)]
                self._end_all.set()
                until = time.monotonic() + LAST_RANK_S
                continue
            running.remove(rank)
            if code != 0 and all(end.rank != rank for end in self.ends):
                self.ends.append(self._end(rank, code))
            if self._end_all.is_set():
                until = time.monotonic() + LAST_RANK_S
            elif code == 0:
                until = until if self.ends else time.monotonic() + self._deadline_s
            else:
                # Code 1 is how a rank ends when it has raised, perhaps because another one is gone.
                until = min(until, time.monotonic() + (CAUSE_GRACE_S if code != 1 or self._cause_known() else LATE_CAUSE_S))

    def _overdue(self, rank: int) -> RankEnd:
        return RankEnd(rank=rank, host="", kind="waited", order=0, summary=(
            f"rank {rank} did not end within {self._deadline_s:g} s after the rank before it: its task hangs, or its function works on "
            "alone; end the function with a barrier, or raise train.ring.deadline_s."))

    def _end(self, rank: int, code: int | None) -> RankEnd:
        host, order = "", len(self.ends)  # upstream does not say on which host a rank runs
        if code is None:
            return RankEnd(rank=rank, host=host, kind="lost", summary=f"lost contact with the task of rank {rank}.", order=order)
        if self._end_all.is_set():
            return RankEnd(rank=rank, host=host, kind="ended", order=order)
        # Upstream reports signal 9 as a shell does: 137.
        return RankEnd(rank=rank, host=host, kind="died", exit_code=128 - code if 128 < code < 192 else code, order=order)


def _execute_in_task(settings: Any, driver: Any, env: dict[str, str], stdout: Any, stderr: Any) -> Execute:
    """Upstream's way to run a command in a task and wait for its end; ``env`` goes there signed, not on a command line."""
    from horovod.spark.gloo_run import _exec_command_fn

    execute: Execute = _exec_command_fn(driver, settings.key, settings, env, stdout, stderr, settings.prefix_output_with_timestamp)
    return execute


def _env_command(slot: Any) -> str:
    """A command that sets the slot's variables. Every user of the host can read a command line: no secrets here."""
    from horovod.runner.gloo_run import create_slot_env_vars

    return shlex.join(["env", *(f"{name}={value}" for name, value in create_slot_env_vars(slot).items())])


def _command(executable: str, driver: Any, settings: Any) -> str:
    """The command of upstream that fetches the function from the driver and calls it."""
    from horovod.runner.common.util import codec

    public = copy.copy(settings)
    public.key = None
    return shlex.join([executable, "-m", "horovod.spark.task.gloo_exec_fn", codec.dumps_base64(driver.addresses()),
                       codec.dumps_base64(public)])
