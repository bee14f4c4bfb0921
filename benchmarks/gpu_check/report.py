"""The check's report as a page of Markdown, in the form of an entry of docs/log. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu_check.outcome import Outcome, all_passed


def page(outcomes: Sequence[Outcome], *, device: str, date: str, seconds: float) -> str:
    """The report.

    Args:
        outcomes: Of all steps, in order.
        device: ``cpu`` or ``cuda``.
        date: Of the check's end, ``YYYY-MM-DD``.
        seconds: How long it took; steps that were kept from an earlier call did not count.
    """
    by_step = {outcome.step: outcome.findings.facts for outcome in outcomes}
    machine, kit = by_step.get("machine", {}), by_step.get("kit", {})
    where = machine.get("gpu", "a machine without a usable GPU") if device == "cuda" else "a CPU in place of a GPU"
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    verdict = "all passed" if all_passed(list(outcomes)) else f"{passed} of {len(outcomes)} passed"
    blocks = [
        f"# {date}: check of {where}: {verdict}",
        f"sparkring {kit.get('version', '?')}, commit {kit.get('commit', '?')}; Horovod's kind {_horovod(by_step)}; {seconds:.0f} s.",
        "## Steps", _table(("step", "status", "seconds"), [(one.step, one.status, f"{one.seconds:.1f}") for one in outcomes]),
        *_errors(outcomes),
        "## Device beside CPU", "Relative distances; float32 without TF32.",
        _table(("step", "figure", "found", "limit", ""), [
            (outcome.step, check.what, f"{check.found:.2e}", f"{check.limit:g}", "" if check.holds else "**too far**")
            for outcome in outcomes for check in outcome.findings.checks]),
        "## Speed", _speed(outcomes), "## Machine", _table(("fact", "value"), list(machine.items()))]
    return "\n\n".join(block for block in blocks if block) + "\n"


def document(outcomes: Sequence[Outcome], *, device: str, date: str, seconds: float) -> dict[str, Any]:
    """The same as plain data."""
    return {"date": date, "device": device, "passed": all_passed(list(outcomes)), "seconds": round(seconds, 1),
            "steps": [outcome.to_plain() for outcome in outcomes]}


def _horovod(by_step: Mapping[str, Mapping[str, Any]]) -> str:
    kinds = (by_step.get(step, {}).get("kind") for step in ("horovod", "horovod without NCCL"))
    return next((str(kind) for kind in kinds if kind), "unknown")


def _errors(outcomes: Sequence[Outcome]) -> list[str]:
    return [f"### {outcome.step}: {outcome.status}\n\n```\n{outcome.error}\n```" for outcome in outcomes if outcome.error]


def _speed(outcomes: Sequence[Outcome]) -> str:
    """One row a network; the columns are the facts."""
    measured = [(outcome.step.removeprefix("speed "), outcome.findings.facts) for outcome in outcomes
                if outcome.step.startswith("speed ") and outcome.findings.facts]
    columns = list(dict.fromkeys(name for _, facts in measured for name in facts))
    ring = next((outcome.findings.facts for outcome in outcomes if outcome.step == "ring of one"), {})
    rows = [(name, *(facts.get(column, "") for column in columns)) for name, facts in measured]
    return "\n\n".join(block for block in (
        _table(("network", *columns), rows) if rows else "Nothing was measured.",
        _table(("ring of one", "value"), list(ring.items())) if ring else "") if block)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
