"""What a step of the check found: facts, and figures beside their limits. Plain data that JSON can hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class Check:
    """A figure that must not exceed its limit."""

    what: str
    found: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether it keeps the limit; NaN does not."""
        return self.found <= self.limit


@dataclass(frozen=True)
class Findings:
    """What a step returns."""

    facts: dict[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    @property
    def excess(self) -> str:
        """The figures that exceed their limits, in words."""
        return "; ".join(f"{check.what} is {check.found:.3g}, at most {check.limit:g} is allowed"
                         for check in self.checks if not check.holds)


@dataclass(frozen=True)
class Outcome:
    """How a step ended."""

    step: str
    status: Status
    seconds: float = 0.0
    findings: Findings = Findings()
    error: str = ""
    """The reason for a status other than ``passed``."""

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Outcome:
        """The inverse of ``to_plain``."""
        found = plain["findings"]
        return cls(**plain | {"findings": Findings(found["facts"], tuple(Check(**check) for check in found["checks"]))})


def all_passed(outcomes: list[Outcome]) -> bool:
    """Whether every step passed, and there was one."""
    return bool(outcomes) and all(outcome.status == "passed" for outcome in outcomes)
