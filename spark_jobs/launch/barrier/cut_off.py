"""The end of a ring whose hosts no longer reach each other: how the driver hears of it without the hosts that are cut off.

Spark gives the driver a stage's rows once all of its tasks have ended, and a task on a host without a network ends for the driver minutes
later. So a task that others do not answer fails the stage: Spark carries the text of its exception to the driver at once.

    alpha   rank 0   waits in a sum, gives up after deadline_s; its task ends the ring    ranks 2 and 3 do not answer: CutOff
    beta    rank 2   the same; its task cannot reach the board at alpha                    ends its rank, as alpha's tasks do
    driver           the stage has failed; the text names ranks and host                   DeadlinePassed
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sparkring.spark_jobs.launch.meeting.status_board import ANSWER_TIMEOUT_S
from sparkring.spark_jobs.launch.rank.end import CAUSE_GRACE_S, RankEnd

LEAVE_S = CAUSE_GRACE_S + ANSWER_TIMEOUT_S
"""Seconds for all tasks to leave the board once the ring has ended."""
SPARK_FIRST_S = 5.0
"""Seconds for Spark to end the stage itself, if the executor of rank 0 is gone: it knows why."""
_MARK = "sparkring end of ring: "


class CutOff(Exception):
    """Raised in a Spark task, to fail its stage. The driver raises the error of ``end`` instead."""

    def __init__(self, end: RankEnd) -> None:
        super().__init__(f"{_MARK}{end.to_json()}")


def end_of_stage(text: str) -> RankEnd | None:
    """The end in Spark's text about a failed stage, if a ``CutOff`` failed it."""
    found = re.search(rf"{_MARK}(\{{.*\}})", text)
    return RankEnd.from_json(found.group(1)) if found else None


def silent_end(own: RankEnd, silent: Sequence[int], hosts: Mapping[int, str]) -> RankEnd:
    """The end of a ring whose board has not heard from some tasks.

    Args:
        own: The end of rank 0, whose task keeps the board.
        silent: Ranks of the tasks that have not left it.
        hosts: Host of each rank.
    """
    return _cut_off(own, silent, hosts, f"{_named(silent, hosts)} {'does' if len(silent) == 1 else 'do'} not answer: the task of rank "
                    f"{own.rank} on {own.host} heard nothing from there for {LEAVE_S:g} s after the ring had ended")


def lost_end(own: RankEnd, said: str, hosts: Mapping[int, str]) -> RankEnd:
    """The end of a rank whose task has ``said`` that it lost contact with the board, which the task of rank 0 keeps."""
    return _cut_off(own, [0], hosts, f"rank 0 on {hosts[0]} does not answer: the task of rank {own.rank} on {own.host} "
                    f"{said.partition(';')[0]}")


def _cut_off(own: RankEnd, missing: Sequence[int], hosts: Mapping[int, str], found: str) -> RankEnd:
    places = sorted({hosts[rank] for rank in missing})
    words = f"\nrank {own.rank} on {own.host} raised {own.summary}" if own.kind == "raised" else ""
    return RankEnd(rank=own.rank, kind="cut_off", host=places[0] if len(places) == 1 else "", awaited=tuple(missing), summary=(
        f"{found}; see that {' and '.join(places)} can be reached over the network, and the executors' logs there.{words}"))


def _named(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """E.g. ``rank 2 and rank 3 on beta``."""
    by_host: dict[str, list[str]] = {}
    for rank in ranks:
        by_host.setdefault(hosts[rank], []).append(f"rank {rank}")
    return " and ".join(f"{' and '.join(names)} on {host}" for host, names in by_host.items())
