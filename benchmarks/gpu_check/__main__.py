"""Run the check: ``python -m benchmarks.gpu_check KIT FOLDER [--cpu] [--minutes N]``, as ``scripts/gpu_check.sh`` does.

Steps run in order; one that fails is reported, and the others go on. Each outcome is kept in FOLDER/steps, so a second call with the
same kit repeats only what has not passed. After every step the report is written anew. Exit code 0: every step passed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.gpu_check import install, numerics, speed
from benchmarks.gpu_check.cases import NETWORKS, SPEED
from benchmarks.gpu_check.install import StepFailed
from benchmarks.gpu_check.numerics import Bench
from benchmarks.gpu_check.outcome import Findings, Outcome, all_passed
from benchmarks.gpu_check.ranks import RanksFailed
from benchmarks.gpu_check.report import document, page

ALWAYS = ("kit", "machine")
"""Steps that are cheap and never kept from an earlier call."""


@dataclass(frozen=True)
class Step:
    """One step of the check."""

    name: str
    run: Callable[[], Findings]
    needs: tuple[str, ...] = ()
    """Steps one of which must have passed."""
    instead_of: str = ""
    """The step whose failure calls for this one; it is left out if that one passed."""


def main() -> int:
    """Run all steps; returns the exit code."""
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kit", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", action="store_true", help="put the CPU in the place of the GPU")
    parser.add_argument("--minutes", type=float, default=10.0, help="end after so many minutes; what is left is not run")
    asked = parser.parse_args()
    began, device = time.monotonic(), "cpu" if asked.cpu else "cuda"
    kit, work = asked.kit.resolve(), asked.folder.resolve()
    bench = Bench(kit, work, device, remaining_s=lambda: max(1.0, began + 60 * asked.minutes - time.monotonic()))
    kept = _Kept(work / "steps", key=hashlib.sha256((kit / "manifest.json").read_bytes() + device.encode()).hexdigest()[:16])
    steps, outcomes = _steps(bench), list[Outcome]()
    for outcome in _outcomes(steps, kept, left_s=lambda: began + 60 * asked.minutes - time.monotonic()):
        outcomes.append(outcome)
        print(f"{outcome.status:8} {outcome.seconds:6.1f} s  {outcome.step}" + (f": {_first_line(outcome.error)}" if outcome.error else ""),
              flush=True)
        _write_report(work, [*outcomes, *to_come(steps, outcomes)], device=device, seconds=time.monotonic() - began)
    print(f"report: {work / 'report.md'}")
    return 0 if all_passed(outcomes) else 1


def _steps(bench: Bench) -> list[Step]:
    kit, work, device, left_s = bench.kit, bench.work, bench.device, bench.remaining_s
    built = ("horovod", "horovod without NCCL")
    steps = [
        Step("kit", lambda: install.require_whole_kit(kit)),
        Step("machine", lambda: install.describe_machine(device, deadline_s=left_s()), needs=("kit",)),
        Step("packages", lambda: install.install_packages(kit, work, deadline_s=left_s()), needs=("machine",)),
        Step("horovod", lambda: install.build_horovod(kit, work, device, deadline_s=left_s()), needs=("packages",)),
        # What follows needs NCCL for the ring of one alone.
        Step("horovod without NCCL", lambda: install.build_horovod(kit, work, "cpu", deadline_s=left_s()), needs=("packages",),
             instead_of="horovod"),
        Step("ring of one", partial(numerics.sum_in_ring, bench), needs=built),
        Step("gradients", partial(numerics.compare_gradients, bench), needs=built)]
    # The runs beside the CPU come last: they take most of the time.
    steps += [Step(f"speed {case.name}", partial(speed.measure, bench, case), needs=built) for case in SPEED]
    return steps + [Step(f"train {network.name}", partial(numerics.compare_training, bench, network), needs=built)
                    for network in NETWORKS]


def _outcomes(steps: list[Step], kept: _Kept, *, left_s: Callable[[], float]) -> Iterator[Outcome]:
    """Run the steps, or take their earlier outcomes."""
    status: dict[str, str] = {}
    for step in steps:
        if step.instead_of and status[step.instead_of] == "passed":
            continue
        outcome = None if step.name in ALWAYS else kept.passed(step.name)
        if outcome is None:
            outcome = _run(step, status, left_s)
            kept.keep(outcome)
        status[step.name] = outcome.status
        yield outcome


def to_come(steps: list[Step], outcomes: list[Outcome]) -> list[Outcome]:
    """The steps after the last outcome, as not run: a report that is read before the end, or after a kill, must not pass."""
    last = next(place for place, step in enumerate(steps) if step.name == outcomes[-1].step)
    return [Outcome(step.name, "not run", error="the check has not come to it") for step in steps[last + 1:] if not step.instead_of]


def _run(step: Step, status: dict[str, str], left_s: Callable[[], float]) -> Outcome:
    if step.needs and not any(status.get(name) == "passed" for name in step.needs):
        return Outcome(step.name, "not run", error=f"it needs the step {' or '.join(step.needs)}, which did not pass")
    if left_s() <= 0:
        return Outcome(step.name, "not run", error="no time was left; call the check again, which keeps what has passed")
    began = time.monotonic()
    found = Findings()
    try:
        found = step.run()
        error = found.excess
    except (StepFailed, RanksFailed) as failure:
        error = str(failure)
    except Exception:  # noqa: BLE001 - the other steps go on
        error = traceback.format_exc()
    if error and left_s() <= 0:
        error = f"the check's time ended within this step; call the check again, which begins the step anew. Found so far: {error}"
    return Outcome(step.name, "failed" if error else "passed", time.monotonic() - began, found, error=error)


class _Kept:
    """The outcomes of earlier calls."""

    def __init__(self, folder: Path, *, key: str) -> None:
        """``key`` changes with all that an outcome depends on, but for the machine: a folder belongs to one."""
        self._folder, self._key = folder, key
        folder.mkdir(parents=True, exist_ok=True)

    def passed(self, step: str) -> Outcome | None:
        """An earlier outcome, if the step passed."""
        file = self._file(step)
        if not file.is_file():
            return None
        stored = json.loads(file.read_text(encoding="utf-8"))
        outcome = Outcome.from_plain(stored["outcome"])
        return outcome if stored["key"] == self._key and outcome.status == "passed" else None

    def keep(self, outcome: Outcome) -> None:
        """Store an outcome; it is there whole or not at all."""
        file = self._file(outcome.step)
        partial_file = file.with_suffix(".part")
        partial_file.write_text(json.dumps({"key": self._key, "outcome": outcome.to_plain()}), encoding="utf-8")
        partial_file.rename(file)

    def _file(self, step: str) -> Path:
        return self._folder / f"{step.replace(', ', '-').replace(' ', '-')}.json"


def _write_report(work: Path, outcomes: list[Outcome], *, device: str, seconds: float) -> None:
    date = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")
    (work / "report.json").write_text(json.dumps(document(outcomes, device=device, date=date, seconds=seconds), indent=1) + "\n",
                                      encoding="utf-8")
    (work / "report.md").write_text(page(outcomes, device=device, date=date, seconds=seconds), encoding="utf-8")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
