"""Ask a vulnerability service about every locked package: ``python scripts/audit_dependencies.py``, or ``make audit``.

    uv.lock --> names and versions --> one request to OSV (https://osv.dev) --> findings, minus audit_exceptions.toml

Exit code 0: nothing known, or every finding has an exception that has not expired; 1: a finding without one; 2: the lock or the
exceptions cannot be read. Where the service cannot be reached nothing was audited: that is said, and is no failure, since a
build without the network is none either; with --require it is one (3). Uses Python's standard library alone, so that it also runs
before anything is installed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SERVICE = "https://api.osv.dev"
TIMEOUT_S = 20.0
MAX_ANSWER_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class Package:
    """One locked package."""

    name: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One known hole of one locked package."""

    package: Package
    ids: tuple[str, ...]
    """The service's name of it, then its other names."""
    summary: str


@dataclass(frozen=True, kw_only=True)
class Excuse:
    """Why a finding does not stop the build, for a while."""

    id: str
    package: str
    reason: str
    expires: dt.date


class Unreachable(Exception):
    """The service did not answer."""


def locked_packages(lock: Path) -> list[Package]:
    """Packages of a ``uv.lock`` that come from a package index or are built from its sources (``third_party``)."""
    entries = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    return [Package(name=entry["name"], version=entry["version"]) for entry in entries
            if "version" in entry and "editable" not in entry["source"] and "virtual" not in entry["source"]]


def unhashed(lock: Path) -> list[str]:
    """Files named by a lock that has no hash for them, so that whoever serves them decides what is installed."""
    entries = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    return [f"{entry['name']}: {file.get('url') or file.get('path')}" for entry in entries if "registry" in entry["source"]
            for file in (*entry.get("wheels", ()), *([entry["sdist"]] if "sdist" in entry else ()))
            if not str(file.get("hash", "")).startswith("sha256:")]


def read_excuses(file: Path) -> list[Excuse]:
    """The exceptions; each has all its fields, and a reason."""
    excuses = [Excuse(**entry) for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("exception", ())]
    for excuse in excuses:
        if not excuse.reason.strip() or not isinstance(excuse.expires, dt.date):
            raise ValueError(f"the exception for {excuse.id} needs a reason and a date `expires`")
    return excuses


def findings_of(packages: list[Package], *, service: str) -> list[Finding]:
    """What the service knows about these versions.

    Raises:
        Unreachable: it cannot be asked.
    """
    queries = [{"package": {"ecosystem": "PyPI", "name": package.name}, "version": package.version} for package in packages]
    answers = _asked(f"{service}/v1/querybatch", {"queries": queries})["results"]
    findings = []
    for package, answer in zip(packages, answers, strict=True):
        for hole in answer.get("vulns", ()):
            facts = _asked(f"{service}/v1/vulns/{hole['id']}")
            if "withdrawn" not in facts:
                findings.append(Finding(package=package, ids=(hole["id"], *facts.get("aliases", ())), summary=facts.get("summary", "")))
    return findings


def _asked(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 (https, or what a test names)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            return json.loads(response.read(MAX_ANSWER_BYTES))
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise Unreachable(f"{url}: {error}") from None


def excused(finding: Finding, excuses: list[Excuse], *, today: dt.date) -> Excuse | None:
    """The exception that covers a finding today."""
    return next((excuse for excuse in excuses
                 if excuse.id in finding.ids and excuse.package == finding.package.name and today <= excuse.expires), None)


def main() -> int:
    """Audit, and say what was found."""
    parser = argparse.ArgumentParser(description="Ask a vulnerability service about every locked package.")
    parser.add_argument("--lock", type=Path, default=ROOT / "uv.lock")
    parser.add_argument("--exceptions", type=Path, default=ROOT / "scripts" / "audit_exceptions.toml")
    parser.add_argument("--service", default=SERVICE)
    parser.add_argument("--require", action="store_true", help="fail (3) where the service cannot be asked, e.g. before a release")
    asked = parser.parse_args()
    try:
        packages, excuses, without_hash = locked_packages(asked.lock), read_excuses(asked.exceptions), unhashed(asked.lock)
    except (OSError, KeyError, TypeError, ValueError) as error:
        print(f"audit: cannot read the lock or the exceptions: {error}", file=sys.stderr)
        return 2
    if without_hash:
        print("audit: locked without a hash:", *without_hash, sep="\n  ")
        return 1
    try:
        findings = findings_of(packages, service=asked.service)
    except Unreachable as unreachable:
        print(f"audit: {len(packages)} locked packages were NOT audited, the service cannot be asked ({unreachable}).")
        return 3 if asked.require else 0
    today = dt.datetime.now(dt.UTC).date()
    open_ones = 0
    for finding in findings:
        excuse = excused(finding, excuses, today=today)
        open_ones += excuse is None
        verdict = f"excepted until {excuse.expires}: {excuse.reason}" if excuse else "NOT EXCEPTED"
        print(f"audit: {finding.package.name} {finding.package.version} {' '.join(finding.ids)}: {finding.summary} -- {verdict}")
    print(f"audit: {len(packages)} locked packages, {len(findings)} findings, {open_ones} of them without an exception.")
    if open_ones:
        print("audit: raise the pin, or write an exception with a reason and an end into scripts/audit_exceptions.toml.")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
