"""The progress of a generation, read from rank 0's events while the ranks train. Needs nothing but the run folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkring.pipelines.training.events.slow_ranks import Slow
from sparkring.pipelines.training.events.writer import EventTail, Record
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.spark_jobs.spark.progress import Bar, Progress


@contextmanager
def progress_shown(job: TrainJob, bar: Bar, progress: Progress, *, on_failed_checkpoint: Callable[[], None]) -> Iterator[None]:
    """Show rank 0's events while the block runs.

    Args:
        job: The generation's job.
        bar: Counts optimizer steps of the whole run.
        progress: Gets one note for each rollback, early end, checkpoint that was not written, slow rank, and wrong
            prediction.
        on_failed_checkpoint: Called for each checkpoint that was not written.
    """
    done = threading.Event()
    tail = EventTail(job.run_url, generation=job.generation, rank=0)
    view = _ProgressView(job.config.train.epochs, bar, progress, on_failed_checkpoint)

    def follow() -> None:
        while not done.wait(tail.every_s):
            view.show(tail.new_records())
        view.show(tail.new_records())

    thread = threading.Thread(target=follow, name="sparkring-follow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def steps_done(run_url: str, *, generation: int, rank: int) -> int:
    """Optimizer steps that a rank of a generation had done since the run began; -1 if it had not begun."""
    steps_per_epoch = done = -1
    for record in EventTail(run_url, generation=generation, rank=rank).new_records():  # after a rollback the last ones count
        if record["event"] == "start":
            steps_per_epoch = record["steps_per_epoch"]
            done = record["epoch"] * steps_per_epoch + record["step"]
        elif record["event"] == "step":
            done = record["epoch"] * steps_per_epoch + record["step"] + 1
    return done


class _ProgressView:
    """Turns rank 0's records into a bar over all steps of the run, and into notes."""

    def __init__(self, epochs: int, bar: Bar, progress: Progress, on_failed_checkpoint: Callable[[], None]) -> None:
        self._epochs, self._bar, self._progress, self._on_failed_checkpoint = epochs, bar, progress, on_failed_checkpoint
        self._steps_per_epoch, self._validation, self._warned_of_plan = 0, "", False

    def show(self, records: list[Record]) -> None:
        for record in records:
            self._note(record)
            if record["event"] == "start":
                self._steps_per_epoch = record["steps_per_epoch"]
            elif record["event"] == "epoch" and record["validation"]:
                self._validation = f", held-out {_first_two(record['validation'])}"
        last = next((record for record in reversed(records) if record["event"] == "step"), None)
        if last is not None:
            loss = "not finite" if last["loss"] is None else f"{last['loss']:.4f}"
            self._bar.update(last["epoch"] * self._steps_per_epoch + last["step"] + 1, total=self._epochs * self._steps_per_epoch,
                             text=f"epoch {last['epoch'] + 1} of {self._epochs}, loss {loss}{self._validation}")

    def _note(self, record: Record) -> None:
        """Note the records that are worth a line; a wrong prediction only once."""
        event = record["event"]
        if event == "slow" and not record["over"]:
            self._progress.note(f"training: {Slow.of(record).text()}")
        elif event in ("rollback", "stopped_early") or record.get("what") == "checkpoint":
            self._progress.note(f"training: {record['text']}")
            if event == "warning":
                self._on_failed_checkpoint()
        elif event == "plan" and record["text"] and not self._warned_of_plan:
            self._progress.note(f"training: {record['text']}")
            self._warned_of_plan = True


def _first_two(metrics: dict[str, float]) -> str:
    """E.g. ``loss 0.4, AUC 0.7``."""
    return ", ".join(f"{'AUC' if name == 'auc' else name} {value:.4f}" for name, value in list(metrics.items())[:2])
