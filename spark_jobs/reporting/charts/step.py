"""The picture of a step of a run in stages: what the schedule asks for, above what happened. Pure: facts in, markup out."""

from __future__ import annotations

from dataclasses import replace

from sparkring.spark_jobs.reporting.charts.canvas import Picture
from sparkring.spark_jobs.reporting.charts.schedule import schedule_picture
from sparkring.spark_jobs.reporting.facts.step import StepFacts
from sparkring.spark_jobs.reporting.facts.words import count

MOST_ACTIONS = 4000
"""Of all workers, that are drawn: more would be too small to see, and make a page of megabytes."""


def step_picture(step: StepFacts) -> Picture | None:
    """Draw plan and measurement on one axis of time; None if there is too much to see."""
    if sum(map(len, step.measured.values())) > MOST_ACTIONS:
        return None
    picture = schedule_picture(step.schedule, plan=step.plan, measured=step.measured, name="step")
    return replace(picture, title=f"Step {count(step.number)} of epoch {count(step.epoch)}, worker by worker", caption=(
        f"{picture.caption} The plan is schedule {step.schedule.name} with the median time that each kind of pass took in this step, and "
        "messages that take none; what the measured step is longer by are messages, waiting for them, and uneven passes."))
