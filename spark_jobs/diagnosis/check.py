"""One check of the doctor: its status, what was found, what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sparkring.errors import SparkringError
from sparkring.extras import extras_named

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One thing that a job needs."""

    name: str
    """E.g. ``Java``."""
    status: Status
    """``fail``: a job of this config would stop here. ``warn``: it would run slowly, or the check cannot tell."""
    found: str
    advice: str = ""
    """What to do; empty if the status is ``ok``."""


def guarded(name: str, look: Callable[[], Check]) -> Check:
    """Run one check; an error in it becomes its result, so that it never hides the other checks."""
    try:
        with extras_named():
            return look()
    except SparkringError as error:
        return Check(name, "fail", error.found, sentence(error.remedy) or "See what was found.")
    except Exception as error:  # noqa: BLE001 - a bug in one check must not cost the reader the others
        return Check(name, "fail", f"the check itself failed: {type(error).__name__}: {error}", "Please report this as a bug of sparkring.")


def sentence(remedy: str) -> str:
    """The remedy of an error, as advice that stands alone."""
    return remedy[:1].upper() + remedy[1:]


def verdict(name: str, problems: list[tuple[Status, str, str]], *, fine: str) -> Check:
    """Combine problems into one check: the worst status, all that was found, all advice.

    Args:
        name: The check's name.
        problems: (status, found, advice) of each problem.
        fine: What to say if there is none.
    """
    if not problems:
        return Check(name, "ok", fine)
    worst: Status = "fail" if any(status == "fail" for status, _, _ in problems) else "warn"
    return Check(name, worst, "; ".join(found for _, found, _ in problems), " ".join(dict.fromkeys(advice for _, _, advice in problems)))
