"""The run folder, as the driver uses it: the run's identity, its progress, and its result.

    ../<name>.json               the run's document: whose this folder is (listing.py)
    .lock                        held by the driver that trains
    control/begun-<n>.json       generation n is taken, by one driver
    events/, checkpoints/        written by ranks
    result.json                  the run is done

The folder is opened once; everything the driver asks of it goes through here.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from sparkring.errors import CommitConflict, RunFolderMismatch
from sparkring.pipelines.data.stores.documents import read_model
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.retry import retry
from sparkring.pipelines.data.stores.writable import require_writable, write_errors_explained
from sparkring.pipelines.training.checkpoints.names import DATA
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import FOLDER as EVENTS
from sparkring.pipelines.training.events.writer import event_files
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.pipelines.training.strategies.signals import ask_to_stop, claim_name
from sparkring.spark_jobs.run.identity import Identity, first_difference
from sparkring.spark_jobs.run.listing import RunDocument, document_of, read_document_of

RESULT = "result.json"
LOCK = ".lock"
WHAT = "run folder"
WRITTEN_TO = (".", EVENTS, DATA)


class RunFolder:
    """One run's folder, and the run's document beside it."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url)
        runs_url, _, self.name = url.rstrip("/").rpartition("/")
        self._runs = open_store(runs_url)
        self.url = self.store.url
        self._checkpoints = Checkpoints(self.url)

    @contextmanager
    def locked(self, *, lost: Callable[[str], None]) -> Iterator[None]:
        """Hold the folder against other drivers while the block runs.

        Args:
            lost: Called, from a thread, with the reason if another driver takes the folder over.
        Raises:
            CommitConflict: another driver holds it.
            StorageError: the folder cannot be written.
        """
        busy = f"{self.url} is being trained by another process; wait for it, or set run to another name."
        with ExitStack() as held:
            with write_errors_explained(self.store, what=WHAT):
                held.enter_context(self.store.lock(LOCK, busy=busy, lost=partial(lost, "another process has taken over the run")))
            yield

    def claim(self, mine: Identity, *, dataset_url: str, lanes_given: bool) -> Identity:
        """Begin the run, or check that it is the one that was begun under this name.

        Args:
            mine: The identity that the config asks for.
            dataset_url: The dataset that the run reads.
            lanes_given: Whether the config sets ``train.lanes``; otherwise the first start fixed them.
        Returns:
            The identity that the run has.
        Raises:
            RunFolderMismatch: it is another run.
            DocumentDamaged: its document cannot be read.
            StorageError: the folder cannot be written.
        """
        try:
            with write_errors_explained(self.store, what=WHAT):
                document = RunDocument.new(mine, dataset_url=dataset_url).model_dump_json(indent=1)
                self._runs.put_if_absent(document_of(self.name), document.encode())
            return mine
        except CommitConflict:
            theirs = read_document_of(self._runs, self.name).identity
        found = first_difference(theirs, mine if lanes_given else {**mine, "lanes": theirs.get("lanes")})
        if found is not None:
            raise RunFolderMismatch(f"run {self.name} has {found.key}={found.theirs}, this config says {found.mine}; leave run out of the "
                                    "config, or set it to another name, to have another run beside it.")
        return theirs

    def abandon_if_unused(self) -> None:
        """Give the folder up if no rank has begun: an attempt that failed early must not bind the next one."""
        with suppress(OSError):  # unreachable storage must not hide the error that the attempt ended with
            if not event_files(self.url):
                self._runs.delete(document_of(self.name))

    def require_writable(self) -> None:
        """Write where the driver and ranks will write, and delete it again.

        Raises:
            StorageError: the folder cannot be written.
        """
        require_writable(self.store, folders=WRITTEN_TO, what=WHAT)

    def result(self) -> TrainSummary | None:
        """The result of a run that is done, else None."""
        try:
            return read_model(self.store, RESULT, TrainSummary, expected="the summary of a run",
                              remedy="delete it and train again, which resumes from the last checkpoint")
        except FileNotFoundError:
            return None

    def finish(self, summary: TrainSummary) -> None:
        """Mark the run as done."""
        self.store.put(RESULT, summary.model_dump_json(indent=1, exclude={"interrupted"}).encode())

    def committed(self) -> int:
        """Optimizer steps of the latest checkpoint; -1 if there is none."""
        return max(retry(self._checkpoints.numbers), default=-1)

    def claim_generation(self, *, at_least: int = 0) -> int:
        """Take a generation number that no other driver has, not even one that has lost its lock without noticing."""
        generation = max(at_least, self._next_generation())
        mine = json.dumps({"claim": uuid.uuid4().hex}).encode()  # a store may take a document that equals this one for this driver's
        while True:
            try:
                self.store.put_if_absent(claim_name(generation), mine)
                return generation
            except CommitConflict:
                generation += 1

    def ask_to_stop(self, generation: int) -> None:
        """Have the ranks of a generation save and end after their current step."""
        ask_to_stop(self.store, generation)

    def _next_generation(self) -> int:
        """One more than any that left a trace: a rank may have died before its first events were stored."""
        begun = [int(name.split("-")[0]) for name in event_files(self.url)] + self._checkpoints.generations()
        return max(begun, default=-1) + 1
