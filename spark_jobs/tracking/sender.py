"""Send what a run's folder holds to MLflow, once: metrics as they come, and files when they are there.

Whatever goes wrong is raised as an error in one sentence; the next call goes on where this one ended.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from sparkring.conf.schema import Config, TrackingConfig
from sparkring.pipelines.data.stores.documents import read_document
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.events.writer import Record
from sparkring.spark_jobs.tracking.facts import params_of, tags_of
from sparkring.spark_jobs.tracking.rank_zero import RankZero
from sparkring.spark_jobs.tracking.readings import Reading, Readings, named, readings
from sparkring.spark_jobs.tracking.server import MOST_METRICS, RUN_TAG, WEIGHTS_TAG, MlflowServer, address
from sparkring.spark_jobs.tracking.state import Sent, read_sent, write_sent

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
CARD, EVALUATION, REPORT, MODEL = "model/model.json", "evaluation.json", "report.html", "model"
ROOM_OF_A_RECORD = 50
"""Readings that a record has at most, but for networks with very many metrics; a batch leaves room for them."""


class Batch(NamedTuple):
    """Readings that one request sends, and how far the run is sent after it."""

    readings: list[Reading]
    steps: int
    epochs: int


class File(NamedTuple):
    """Something that is sent once."""

    content: bytes
    """What identifies it: if this was sent, it is not sent again."""
    send: Callable[[MlflowServer], None]


class Sender:
    """Sends one run.

    Args:
        config: Has a section ``tracking``.
        tracking: That section.
        run_url: The run folder.
    """

    def __init__(self, config: Config, tracking: TrackingConfig, *, run_url: str) -> None:
        self._config, self._tracking, self._run_url = config, tracking, run_url
        self._store, self._rank_zero = open_store(run_url), RankZero(run_url)
        self._sent = read_sent(self._store, uri=address(tracking), experiment=tracking.experiment or config.name)
        self._readings = Readings(steps=self._sent.steps, epochs=self._sent.epochs)
        self._records: Iterator[Record] = iter(())
        self._gathered: list[Reading] = []
        """Of the next batch. They outlive an error of the look for more records, since ``_readings`` gives each only once."""
        self._batch: Batch | None = None
        """Read, and not yet taken by MLflow."""
        self._server: MlflowServer | None = None

    @property
    def mlflow_run_id(self) -> str:
        """The id of MLflow's run; empty until it is known to exist."""
        return self._sent.mlflow_run_id

    def send(self, *, ended: Callable[[], bool] = lambda: False) -> int:
        """Send the metrics of all records so far.

        Args:
            ended: Asked before each batch; true leaves the rest for later.
        Returns:
            Number of values that were sent.
        Raises:
            TrackingFailed: MLflow does not answer, or refuses.
            OSError, DocumentDamaged: the run folder cannot be read or written.
        """
        count = 0
        while not ended() and (batch := self._next_batch()) is not None:
            server = self._begun()
            if batch.readings:
                server.log(self._sent.mlflow_run_id, batch.readings)
            self._note(steps=batch.steps, epochs=batch.epochs)
            self._batch, count = None, count + len(batch.readings)
        return count

    def send_files(self) -> list[str]:
        """Send the model, its evaluation and the report, as far as they are there and were not sent.

        Returns:
            Names of what was sent.
        Raises:
            As ``send``.
        """
        found = self._files() if self._readings.start is not None else {}
        due = [name for name, file in found.items() if self._sent.files.get(name) != _sha256(file.content)]
        for name in due:
            found[name].send(self._begun())
            self._note(files={**self._sent.files, name: _sha256(found[name].content)})
        return due

    def end(self, status: Status) -> None:
        """Give MLflow's run its last status.

        Raises:
            As ``send``.
        """
        if self._readings.start is not None and self._sent.status != status:
            self._begun().set_status(self._sent.mlflow_run_id, status)
            self._note(status=status)

    def _begun(self) -> MlflowServer:
        """The server, after MLflow's run is there and knows of the latest generation."""
        server = self._server = self._server or MlflowServer(address(self._tracking))
        if not self._sent.mlflow_run_id:
            write_sent(self._store, self._sent)  # its key first: whatever happens now, the run is found again
            self._note(mlflow_run_id=server.run_of(self._sent.experiment, key=self._sent.key, name=self._config.name))
        start = self._readings.start
        if start is not None and start["generation"] > self._sent.generation:
            server.describe(self._sent.mlflow_run_id, params=params_of(self._config, start),
                            tags=tags_of(self._config, start, run_url=self._run_url))
            if self._sent.status != "RUNNING":
                server.set_status(self._sent.mlflow_run_id, "RUNNING")
            self._note(status="RUNNING", generation=start["generation"])
        return server

    def _note(self, **values: object) -> None:
        """Store that more was sent."""
        sent = Sent.model_validate(self._sent.model_dump() | values)
        write_sent(self._store, sent)
        self._sent = sent

    def _next_batch(self) -> Batch | None:
        """The batch that MLflow has not taken yet, else the next one; None if there is nothing new."""
        if self._batch is None:
            while len(self._gathered) <= MOST_METRICS - ROOM_OF_A_RECORD and (record := self._next_record()) is not None:
                self._gathered += self._readings.of(record)
            start = self._readings.start
            if self._gathered or (start is not None and start["generation"] > self._sent.generation):
                self._batch, self._gathered = Batch(self._gathered, self._readings.steps, self._readings.epochs), []
        return self._batch

    def _next_record(self) -> Record | None:
        record = next(self._records, None)
        if record is None:
            self._records = self._rank_zero.new()
            record = next(self._records, None)
        return record

    def _files(self) -> dict[str, File]:
        """What is there to send, by its name."""
        found: dict[str, File] = {}
        card, evaluation, report = _read(self._run_url, CARD), _read(self._run_url, EVALUATION), _read(self._run_url, REPORT)
        if card is not None:
            found[MODEL] = File(card + (self._tracking.registered_model or "").encode(), self._send_model)
        if evaluation is not None:
            found[EVALUATION] = File(evaluation, self._send_evaluation)
        if report is not None:
            found[REPORT] = File(report, lambda server: _upload(server, run_id=self._sent.mlflow_run_id, name=REPORT, content=report))
        return found

    def _send_model(self, server: MlflowServer) -> None:
        from sparkring.pipelines.training.job.model_files import load_card
        from sparkring.spark_jobs.tracking.model_folder import write_model_folder

        card, run_id = load_card(self._run_url), self._sent.mlflow_run_id
        with tempfile.TemporaryDirectory(prefix="sparkring-") as folder:
            server.upload(run_id, write_model_folder(self._run_url, card, Path(folder)), MODEL)
        _upload(server, run_id=run_id, name="model_card.json", content=card.model_dump_json(indent=1).encode())
        server.log_new(run_id, list(readings(named("best", card.validation), step=card.step, time_s=self._time_s())))
        if self._tracking.registered_model:
            server.register(self._tracking.registered_model, run_id=run_id,
                            tags={WEIGHTS_TAG: card.weights_sha256, RUN_TAG: self._run_url.rpartition("/")[2]})

    def _send_evaluation(self, server: MlflowServer) -> None:
        document = read_document(self._store, EVALUATION, keys=("network", "split"), remedy="delete it and run `sparkring evaluate` again")
        _upload(server, run_id=self._sent.mlflow_run_id, name=EVALUATION, content=self._store.read(EVALUATION))
        metrics = named(str(document["split"]), document["network"])
        server.log_new(self._sent.mlflow_run_id, list(readings(metrics, step=self._readings.steps, time_s=self._time_s())))

    def _time_s(self) -> float:
        """A time for metrics of the whole run: when its last ring started, which stays the same if they are sent again."""
        return float(self._readings.start["time"]) if self._readings.start else 0.0


def _read(url: str, name: str) -> bytes | None:
    try:
        return open_store(url).read(name)
    except FileNotFoundError:
        return None


def _upload(server: MlflowServer, *, run_id: str, name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="sparkring-") as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        server.upload(run_id, path)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
