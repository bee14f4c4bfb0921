"""Gathering by Spark's channel has a deadline of ours, whatever Spark's own is."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from sparkring.errors import DeadlinePassed
from sparkring.spark_jobs.launch.meeting.spark import SparkMeeting


class Channel:
    """What a barrier task's context offers: waits until the others have come, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.come, self._error = threading.Event(), error

    def allGather(self, message: str) -> list[str]:  # noqa: N802 (Spark's name)
        """Of two tasks."""
        assert self.come.wait(30)
        if self._error:
            raise self._error
        return [message, "other"]


def _meeting(channel: Channel) -> SparkMeeting:
    return SparkMeeting(cast(Any, channel))


def test_a_task_that_does_not_come_is_waited_for_so_long_and_no_longer() -> None:
    channel = Channel()
    with pytest.raises(DeadlinePassed, match=r"did not come within 0\.1 s"):
        _meeting(channel).gather("mine", within_s=0.1)
    channel.come.set()  # the control
    assert _meeting(channel).gather("mine", within_s=30.0) == ["mine", "other"]


def test_what_spark_says_of_a_stage_that_ended_comes_through() -> None:
    channel = Channel(RuntimeError("the stage has ended"))
    channel.come.set()
    with pytest.raises(RuntimeError, match="the stage has ended"):
        _meeting(channel).gather("mine", within_s=30.0)
