"""Jobs on the YARN of the tests (yarn_places.py): applications that ``sparkring submit`` starts, and what comes of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from sparkring.conf.loading import load_config
from sparkring.pipelines.training.events.writer import Record
from sparkring.spark_jobs.stored.audit import AuditResult, audit
from tests.support.configs import write
from tests.support.hadoop import Hdfs
from tests.support.training import events_of
from tests.support.yarn import Yarn, processes_of, spark_properties

DEADLINE_S = 600.0
"""For an application, from its submission to its end."""
LEFT_S = 60.0
"""For the last process of an application that has ended. YARN gives those in its containers 12 s here (yarn.py)."""
LOOK_S = 0.25
SHARED = "flights"
"""Dataset of all jobs that do not make their own; the fixture ``prepared`` has it made."""
T = TypeVar("T")


class Job:
    """A config, and its latest application."""

    def __init__(self, cluster: Yarn, hadoop: Hdfs, folder: Path, *, sources: str, python: Path, conf: dict[str, str] | None = None,
                 workspace: str = "", dataset: str = SHARED, **train: Any) -> None:
        """Write the config; submits nothing.

        Args:
            cluster: Where to run.
            hadoop: Where the dataset goes.
            folder: For the config, the log of each application, and the workspace unless that is elsewhere.
            sources: Of the tables.
            python: The interpreter of driver and executors.
            conf: More Spark properties.
            workspace: URL of another folder for it.
            dataset: Name of its folder in HDFS; jobs that name the same one share it.
            train: Settings of the training, on top of some that make it small, and last for some seconds.
        """
        self._cluster, self._folder = cluster, folder
        folder.mkdir(parents=True, exist_ok=True)
        properties = {**spark_properties(), "spark.yarn.queue": "training", "spark.pyspark.python": str(python),
                      "spark.sql.shuffle.partitions": "2", **(conf or {})}
        self.path = write(folder, "job.yaml", {
            "extends": "yarn/flights", "run": "first",
            "workspace": workspace or str(folder / "flights"), "dataset_url": f"{hadoop.url}/datasets/{dataset}",
            "prepare": {"sources": {table: {"path": f"{sources}/{table}.csv"} for table in ("flights", "weather", "planes", "airports")},
                        "split": {"validation_from": "2013-01-20T05:00:00Z", "test_from": "2013-01-26T05:00:00Z"}},
            "spark": {"conf": properties}, "model": {"hidden": [32, 16]},
            "train": {"num_ranks": 2, "epochs": 5, "batch_rows": 32, "checkpoint_steps": 50,
                      "optimizer": {"lr": 0.003, "weight_decay": 0.1, "schedule": "constant"}, **train}})
        self.config = load_config(self.path)
        self._log = folder / "submit.log"
        self._process: subprocess.Popen[bytes] | None = None

    def prepare_here(self) -> None:
        """Commit the dataset by a Spark on this machine, which takes less time than an application."""
        command = [sys.executable, "-m", "sparkring", "prepare", self.path, "--set", "spark.master=local[2]"]
        ended = subprocess.run(command, cwd=self._folder, env=self._cluster.environment(), capture_output=True, timeout=DEADLINE_S,
                               check=False)
        assert ended.returncode == 0, ended.stderr.decode()[-5000:]

    def submit(self, *options: str) -> None:
        """Start ``sparkring submit`` with this config, and do not wait."""
        assert not self.running
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "sparkring", "submit", self.path, *options], cwd=self._folder,
                                             env=self._cluster.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             start_new_session=True)

    @property
    def running(self) -> bool:
        """Whether the command has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the command has said so far; with the driver here, what the application has said."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def application(self) -> str:
        """The name of the application, once YARN has given it one."""
        return self.until(self._applications, "an application")[0]

    def until(self, look: Callable[[], T | None], what: str) -> T:
        """What ``look`` returns, once that is something; fails when the command ends before, or the deadline passes."""
        assert self._process is not None
        end = time.monotonic() + DEADLINE_S
        while not (found := look()):
            ended = self._process.poll()
            assert ended is None, f"the command ended with {ended} before {what}; {self._said()}"
            assert time.monotonic() < end, f"no {what} within {DEADLINE_S:g} s; {self._said()}"
            time.sleep(LOOK_S)
        return found

    def checkpoint_of(self, generation: int) -> None:
        """Wait until a generation of ranks has saved something."""
        self.until(lambda: [record for record in self.events("checkpoint") if record["generation"] == generation],
                   f"a checkpoint of generation {generation}")

    def events(self, kind: str) -> list[Record]:
        """The records of one kind so far; none where the run's storage does not answer."""
        with suppress(OSError):
            return events_of(self.config, kind)
        return []

    def ended(self) -> int:
        """Wait for the end of the command; returns its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command did not end within {DEADLINE_S:g} s; {self._said()}") from None

    def done(self) -> None:
        """Wait for a good end."""
        code = self.ended()
        assert code == 0, f"the command ended with {code}; {self._said()}"

    def terminate(self) -> None:
        """SIGTERM to the command alone."""
        assert self._process is not None
        self._process.terminate()

    def close(self) -> None:
        """Where the command still runs: end it and what it started, here and in the cluster."""
        if self._process is not None and self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(DEADLINE_S)
            for application in self._applications():
                self._cluster.kill_application(application)

    def nothing_left(self, application: str) -> None:
        """Wait until no process of any container of the application is there."""
        end = time.monotonic() + LEFT_S
        while left := processes_of(application):
            assert time.monotonic() < end, f"still there: {left}"
            time.sleep(LOOK_S)

    def generations(self) -> dict[int, int]:
        """Number of ranks of each generation that has begun."""
        return {record["generation"]: record["size"] for record in self.events("start")}

    def proved(self) -> AuditResult:
        """What the audit says of a run that must be finished."""
        proof = audit(self.config.run_url)
        assert (proof.finished, proof.epochs) == (True, self.config.train.epochs), proof
        return proof

    def _applications(self) -> list[str]:
        return re.findall(r"Submitted application (application_\d+_\d+)", self.log)

    def _said(self) -> str:
        return f"it said:\n{self.log[-5000:]}\ncontainers said:\n{self._cluster.container_logs()[-12000:]}"
