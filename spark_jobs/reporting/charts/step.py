"""Draw one pipelined step of a run: the plan above the measurement. Pure: facts in, markup out."""

from __future__ import annotations

from dataclasses import replace

from sparkring.spark_jobs.reporting.charts.canvas import Picture
from sparkring.spark_jobs.reporting.charts.schedule import schedule_picture
from sparkring.spark_jobs.reporting.facts.step import StepFacts
from sparkring.spark_jobs.reporting.facts.words import count

MOST_ACTIONS = 4000
"""Most actions that are drawn: more would be too small to see, and would make a page of megabytes."""


def step_picture(step: StepFacts) -> Picture | None:
    """Draw plan and measurement on one time axis; None if there are too many actions."""
    if sum(map(len, step.measured.values())) > MOST_ACTIONS:
        return None
    picture = schedule_picture(step.schedule, plan=step.plan, measured=step.measured, name="step")
    return replace(picture, title=f"Step {count(step.number)} of epoch {count(step.epoch)}, worker by worker", caption=(
        f"{picture.caption} The plan is schedule {step.schedule.name} simulated with the median time of each kind of pass in this step, "
        "and messages that take no time. The measured step is longer by messages, waiting for them, and uneven passes."))
