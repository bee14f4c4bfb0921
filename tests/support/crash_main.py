"""Ends a writer's process at every act of a commit in turn: ``python -m tests.support.crash_main TEMPLATE_URL DATASET_URL``.

Each writer is a fork of this process, which has no threads; it ends by ``os._exit`` in the middle of the act. Prints one JSON
object: how many were stopped, what was wrong after which of them, and the versions at the end.
"""

from __future__ import annotations

import json
import os
import sys

from sparkring.pipelines.data.dataset.versions import Dataset
from tests.support.faults import EXIT_CODE, Faults
from tests.support.versions import Writer, damage


def main(template: str, url: str) -> None:
    """Stop a writer at act 0, 1, 2, ... until one is not stopped any more."""
    writer, dataset = Writer(Dataset(template)), Dataset(url)
    wrong: list[str] = []
    number = 0
    while True:
        before = dataset.versions()
        code = _commit_in_a_fork(writer, url, stop_at=number)
        after = dataset.versions()
        if after not in (before, [*before, before[-1] + 1]):
            wrong.append(f"act {number}: versions were {before} and are {after}")
        wrong += [f"act {number}: version {version}: {what}" for version in after[len(before) - 1:] if (what := damage(dataset, version))]
        if code != EXIT_CODE:
            if code:
                raise SystemExit(f"the writer that was not stopped ended with code {code}")
            break
        number += 1
    print(json.dumps({"stopped": number, "wrong": wrong, "versions": dataset.versions()}))


def _commit_in_a_fork(writer: Writer, url: str, *, stop_at: int) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with Faults(at=stop_at, how="exit"):
                writer.commit(url)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
