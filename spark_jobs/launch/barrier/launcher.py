"""The default launcher, driver side: one stage by ``mapInArrow``, which classic sessions and Spark Connect both support.

The stage is a barrier stage. Spark has none under dynamic allocation; there it is a plain stage whose tasks meet at the driver.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import cloudpickle

from sparkring.conf.schema import RingConfig
from sparkring.errors import HostsLeftOut, NotEnoughSlots, RingError, SparkringError
from sparkring.spark_jobs.launch.barrier.cut_off import end_of_stage
from sparkring.spark_jobs.launch.barrier.task import SCHEMA, Launch, run_task
from sparkring.spark_jobs.launch.gpus.source import rank_resources
from sparkring.spark_jobs.launch.meeting.driver import DriverMeeting, unreachable
from sparkring.spark_jobs.launch.meeting.driver_address import driver_address
from sparkring.spark_jobs.launch.meeting.encryption import require_plaintext_allowed
from sparkring.spark_jobs.launch.meeting.hosts import memory_identity
from sparkring.spark_jobs.launch.meeting.status_board import ANSWER_TIMEOUT_S
from sparkring.spark_jobs.launch.meeting.versions import versions_here
from sparkring.spark_jobs.launch.rank.end import Json, RankEnd, results_or_error
from sparkring.spark_jobs.spark.slots import has_dynamic_allocation, master_of, require_slots, slots_of, too_few_slots
from sparkring.spark_jobs.spark.task_resources import profile_of
from sparkring.spark_jobs.spark.versions.profiles import map_in_arrow
from sparkring.spark_jobs.spark.watched_job import CancelWhen, collect_when_started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LATE_START_S = 10.0
"""Seconds for Spark to bring up its Python workers once it has granted the slots."""


def run_by_barrier(fn: Callable[..., Json], args: Sequence[Any], *, num_ranks: int, spark: SparkSession, config: RingConfig,
                   gpus: tuple[str, ...] | None = None, left_out: Collection[str] = ()) -> list[Json]:
    """Run ``fn`` on the tasks of a stage; see ``run_ring``, which deals ``gpus`` out.

    Spark offers no way to exclude hosts. To leave some out, the stage takes all slots, and only tasks on other hosts get ranks. Where the
    number of slots is unknown (Spark Connect), no host is left out.

    Raises:
        HostsLeftOut: the other hosts have too few slots.
    """
    require_plaintext_allowed(spark, config)
    resources = rank_resources(spark, config)
    require_slots(spark, num_ranks=num_ranks, within_s=config.start_timeout_s, resources=resources)
    slots = slots_of(spark, resources) if left_out else None
    left_out = left_out if slots is not None else ()
    num_tasks = max(num_ranks, slots or 0)
    meet_within_s = config.start_timeout_s + LATE_START_S

    def too_few(come: int) -> NotEnoughSlots:
        return too_few_slots(master_of(spark), wanted=num_ranks, slots=come, resources=resources)

    with ExitStack() as stack:
        secret, meeting = secrets.token_hex(16), None
        if has_dynamic_allocation(spark):
            meeting = stack.enter_context(DriverMeeting(driver_address(spark)[0], secret=secret, num_tasks=num_tasks,
                                                        within_s=config.start_timeout_s, deadline_s=config.deadline_s + ANSWER_TIMEOUT_S))
        launch = Launch(
            num_ranks=num_ranks, left_out=tuple(left_out), payload=cloudpickle.dumps((fn, tuple(args))), token=uuid4().hex,
            secret=secret, threads=config.threads_per_rank, device=config.device, gpus=gpus,
            allow_cpu_fallback=config.allow_cpu_fallback, deadline_s=config.deadline_s, heartbeat_s=config.heartbeat_s,
            shared_memory=config.shared_memory, fork_ranks=config.fork_ranks, meet_within_s=meet_within_s,
            meeting=None if meeting is None else meeting.address, not_after=time.time() + meet_within_s, driver_memory=memory_identity(),
            driver_path=tuple(str(Path(entry).absolute()) for entry in sys.path), versions=versions_here())
        tasks = map_in_arrow(spark.range(0, num_tasks, 1, num_tasks), partial(run_task, launch), SCHEMA, barrier=meeting is None,
                             profile=None if resources is None else profile_of(spark, resources))
        try:
            rows = collect_when_started(
                tasks, spark, tag=f"sparkring-{launch.token}", num_tasks=num_tasks, within_s=config.start_timeout_s, resources=resources,
                cancel=CancelWhen(may_end_early=num_tasks - num_ranks, lost_after_s=config.deadline_s,
                                  broken=partial(_why_broken, meeting, too_few)))
        except RingError as error:
            end = end_of_stage(str(error.__cause__))
            if end is None:
                raise
            raise end.error() from None
    ends = [RankEnd.from_json(row["end"]) for row in rows]
    refused = next((end for end in ends if end.kind == "refused"), None)
    if meeting is not None and refused is not None:
        raise refused.error()
    broken = _why_broken(meeting, too_few, 0)
    if broken is not None:
        raise broken
    if all(end.kind == "idle" for end in ends):
        slots_left_out = sum(end.host in left_out for end in ends)
        raise HostsLeftOut(wanted=num_ranks, slots=len(ends) - slots_left_out, slots_left_out=slots_left_out)
    return results_or_error(ends)


def _why_broken(meeting: DriverMeeting | None, too_few: Callable[[int], NotEnoughSlots], num_ended: int) -> SparkringError | None:
    """The error that keeps tasks that meet at the driver from making a ring, or None. ``num_ended`` of them have ended.

    ``too_few`` makes the error from the number of tasks that came.
    """
    if meeting is None or (meeting.complete and meeting.lost is None):
        return None
    if meeting.lost is not None:
        return meeting.lost
    if meeting.closed:
        return too_few(meeting.num_come)
    return unreachable("some executor", meeting.address, "see its log") if num_ended else None
