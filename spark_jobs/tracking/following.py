"""Track a run while a command works: a thread reads the run's folder and sends, and the command never waits for it.

Whatever goes wrong is a note. What is left at the command's end is sent for ``tracking.finish_s`` at most, the rest later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec

from sparkring.conf.schema import Config, TrackingConfig
from sparkring.errors import EnvironmentProblem, SparkringError, Stopped
from sparkring.extras import how_to_install
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.run.folder import RunFolder
from sparkring.spark_jobs.spark.progress import Progress
from sparkring.spark_jobs.tracking.sender import Sender, Status
from sparkring.spark_jobs.tracking.server import settings
from sparkring.spark_jobs.tracking.state import LOCK

EVERY_S, LONGEST_PAUSE_S = 2.0, 60.0
"""Seconds between two looks for new records; after each failure in a row twice as many, up to the longest."""


def require_mlflow(config: Config) -> None:
    """Check, before any work is done, that a config's tracking has its library.

    Raises:
        EnvironmentProblem: it is not installed; the extra is named.
    """
    if config.tracking is not None and find_spec("mlflow") is None:
        raise EnvironmentProblem(f"tracking needs mlflow, which is not installed; {how_to_install('mlflow')}")


@contextmanager
def tracked(config: Config, *, progress: Progress) -> Iterator[None]:
    """Send the run of ``config`` to MLflow while the block runs, and what is left after it for a bounded time.

    Args:
        config: Names the run. Nothing happens if it has no section ``tracking``, or if there is no run.
        progress: Gets the notes.
    """
    if config.tracking is None or config.run is None:
        yield
        return
    make_sender = partial(Sender, config, config.tracking, run_url=config.run_url)
    follower = _Follower(make_sender, config.run_url, config.tracking, progress)
    follower.start()
    try:
        yield
    except BaseException as error:
        follower.finish("KILLED" if isinstance(error, KeyboardInterrupt | Stopped) else "FAILED")
        raise
    follower.finish(None)


@contextmanager
def sending(run_url: str, tracking: TrackingConfig) -> Iterator[None]:
    """Keep other processes from sending this run, and use MLflow with our settings, while the block runs.

    Raises:
        CommitConflict: another process sends it.
        TrackingFailed: this process is sending a run to another server.
    """
    busy = f"{run_url} is being sent to MLflow by another process; nothing needs to be done, or run `sparkring track` later."
    with open_store(run_url).lock(LOCK, busy=busy), settings(tracking):
        yield


def is_done(run_url: str) -> bool:
    """Whether the run has reached its end."""
    return RunFolder(run_url).result() is not None


class _Follower:
    """The thread, and what it has to say."""

    def __init__(self, make_sender: Callable[[], Sender], run_url: str, tracking: TrackingConfig, progress: Progress) -> None:
        self._make_sender, self._run_url, self._tracking, self._progress = make_sender, run_url, tracking, progress
        self._over, self._left = threading.Event(), threading.Event()
        """The block has ended; nobody waits any more."""
        self._status: Status | None = None
        """Of a block that was ended by an error."""
        self._sender: Sender | None = None
        self._pause_s = EVERY_S
        self._whole, self._failing = False, False
        self._thread = threading.Thread(target=self._follow, name="sparkring-tracking", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, status: Status | None) -> None:
        """Send what is left, for ``finish_s`` at most."""
        self._status = status
        self._over.set()
        self._thread.join(self._tracking.finish_s)
        self._left.set()
        if not self._whole:
            self._progress.note("tracking: not everything is in MLflow yet; `sparkring track` with this config sends the rest")

    def _follow(self) -> None:
        with ExitStack() as held:
            while not self._over.wait(self._pause_s):
                self._try(held, last=False)
            self._try(held, last=True)

    def _try(self, held: ExitStack, *, last: bool) -> None:
        """One round. Of failures in a row the first is noted, and once that they are over."""
        try:
            if self._sender is None:
                with ExitStack() as entered:
                    entered.enter_context(sending(self._run_url, self._tracking))
                    self._sender = self._make_sender()
                    held.enter_context(entered.pop_all())
            self._send(self._sender, last=last)
        except Exception as error:  # noqa: BLE001 - training must not fail because of tracking
            if not self._failing:
                self._progress.note(f"tracking: {_found(error)}; what is not sent now is sent later")
            self._failing, self._pause_s = True, min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            if self._failing and not last:
                self._progress.note("tracking: MLflow answers again")
            self._failing, self._pause_s = False, EVERY_S

    def _send(self, sender: Sender, *, last: bool) -> None:
        sender.send(ended=self._left.is_set)
        if not last or self._left.is_set():
            return
        sender.send_files()
        status: Status | None = self._status or ("FINISHED" if is_done(self._run_url) else None)
        if status is not None:
            sender.end(status)
        self._whole = True


def _found(error: Exception) -> str:
    return error.found if isinstance(error, SparkringError) else f"{type(error).__name__}: {error}".partition("\n")[0]
