"""One rank of a training job: opens what the loop needs, checks the dataset's files, and runs the loop (loop/training_loop.py)."""

from __future__ import annotations

from typing import Any, Protocol

from sparkring.models.build import list_blocks
from sparkring.pipelines.data.dataset.versions import Dataset, DatasetVersion
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import EventWriter
from sparkring.pipelines.training.job.job import TrainJob, layout_of
from sparkring.pipelines.training.job.layout import Layout
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.pipelines.training.loop.setup import RankSetup
from sparkring.pipelines.training.loop.training_loop import TrainingLoop
from sparkring.pipelines.training.rows import RankRows
from sparkring.pipelines.training.start_check import require_committed_files
from sparkring.pipelines.training.strategies.pipelined import PipelinedStrategy
from sparkring.pipelines.training.strategies.signals import SignalSource
from sparkring.pipelines.training.strategies.step import Inputs
from sparkring.pipelines.training.strategies.strategy import DataParallelStrategy, Strategy


class RunFiles(Protocol):
    """Opens what a rank writes into the run's folder; ``sparkring chaos`` has one that fails on purpose."""

    def events(self, run_url: str, *, generation: int, rank: int) -> EventWriter:
        """Open this rank's event stream."""
        ...

    def checkpoints(self, run_url: str) -> Checkpoints:
        """Open the run's checkpoints."""
        ...


class PlainRunFiles:
    """The run's files as they are."""

    def events(self, run_url: str, *, generation: int, rank: int) -> EventWriter:
        """See RunFiles."""
        return EventWriter(run_url, generation=generation, rank=rank)

    def checkpoints(self, run_url: str) -> Checkpoints:
        """See RunFiles."""
        return Checkpoints(run_url)


def train_rank(context: RankContext, document: dict[str, Any], *, files: RunFiles | None = None) -> dict[str, Any] | None:
    """Run one rank of a training job; the ring launcher starts it.

    Args:
        context: This rank's place in the ring.
        document: A ``TrainJob``.
        files: Opens the run's events and checkpoints.
    Returns:
        A ``TrainSummary`` as plain values on rank 0, None on the others.
    """
    files = files or PlainRunFiles()
    job = TrainJob.model_validate(document)
    version = Dataset(job.dataset_url).open(job.dataset_version)
    layout = layout_of(job.config, version.manifest)
    opened = Communicator(context) if layout is None else Communicator(
        context, extra_sets=layout.process_sets(context.hosts), hops=layout.transport == "horovod")
    sources = SignalSource(job.run_url, generation=job.generation, rank=context.rank,
                           save_every_s=job.config.train.checkpoint_seconds)
    writer = files.events(job.run_url, generation=job.generation, rank=context.rank)
    with writer as events, opened as communicator, sources as signals:
        rows = RankRows(job, version, layout, context)
        train_loader, validation_loader = rows.loader("train"), rows.loader("validation")
        require_committed_files(communicator, version, splits=("train", "validation"))
        setup = RankSetup(job=job, version=version, layout=layout, communicator=communicator, events=events, signals=signals,
                          strategy=_open_strategy(job, version, layout, rows.inputs(), communicator),
                          checkpoints=files.checkpoints(job.run_url), train_loader=train_loader,
                          validation_loader=validation_loader, receipt_rank=rows.receipt_rank())
        summary = TrainingLoop(setup).run()
    return summary.model_dump() if summary else None


<<<<<<< HEAD
def _open_strategy(job: TrainJob, version: DatasetVersion, layout: Layout | None, inputs: Inputs,
                   communicator: Communicator) -> Strategy:
    """Build this rank's part of the model; all ranks call this at the same point."""
    config, manifest = job.config, version.manifest
    if layout is None:
        return DataParallelStrategy(config, manifest, inputs, communicator)
    blocks = list_blocks(config.model, shapes_of(manifest.task, manifest.preprocessing))
    return PipelinedStrategy(config, manifest, blocks, layout, inputs, communicator)
=======
class _RankTrainer:
    """One rank's part of one generation of a run."""

    def __init__(self, job: TrainJob, layout: Layout | None, communicator: Communicator, events: EventWriter,
                 signals: SignalSource) -> None:
        self._job, self._layout, self._communicator, self._context, self._events = job, layout, communicator, communicator.context, events
        self._signals = signals
        self._stopping = False
        """Whether some rank has been asked to stop; known to all after the same step."""
        self._config: Config = job.config
        rows = RankRows(job, layout, communicator.context)
        self._manifest = rows.manifest
        self._checkpoints = Checkpoints(job.run_url)
        self._loaders = {split: rows.loader(split) for split in ("train", "validation")}
        require_committed_files(communicator, rows.dataset, self._manifest, splits=tuple(self._loaders))
        inputs = rows.inputs()
        self._strategy: Strategy
        if layout is None:
            self._strategy = DataParallelStrategy(self._config, self._manifest, inputs, communicator)
        else:
            blocks = list_blocks(self._config.model, shapes_of(self._manifest.task, self._manifest.preprocessing))
            self._strategy = PipelinedStrategy(self._config, self._manifest, blocks, layout, inputs, communicator)
        self._steps = self._loaders["train"].steps()
        """Steps of an epoch."""
        self._saver = Saver(job.run_url, self._config.train, self._strategy, communicator, events, signals)
        self._rollbacks = Rollbacks(self._config.train.recovery.rollbacks)
        self._spoiled = ""
        """Where a step was not finite, if the run is to go back for that."""
        self._witness, self._witnesses = rows.witness()
        self._receipts = self._receipt_maker()
        self._digest = 0
        """Digest of the row ids that this rank has seen in this epoch since it last told the others."""
        self._sealed = ""
        """The hash of this rank's last step record; other records may follow it before the ranks tell each other."""
        self._sampled = 0
        """The step of this epoch whose timeline is kept."""
        self._seconds, self._slow = StepSeconds(), SlowRanks(layout.alike() if layout else [range(self._context.size)])
        self._plan = PlanWatch(job.predicted_s if self._context.rank == 0 else None, events.write)

    def run(self) -> TrainSummary | None:
        """Train to the end; rank 0 returns the summary."""
        began = time.perf_counter()
        position = start = self._start()
        self._write_start(position)
        while not self._stopping and (position.to_evaluate or position.epoch < self._config.train.epochs):
            position = self._judged(position) if position.to_evaluate else self._epoch(position)  # one that it went back to, too
        self._saver.finish()
        self._strategy.close()
        finish = partial(self._finish, position, resumed_at=start.steps_done) if self._context.rank == 0 else None
        summary = run_keeping_alive(self._communicator, finish, name="finish")
        self._events.write("end", seconds=round(time.perf_counter() - began, 3))
        return summary

    # -- start -------------------------------------------------------------------------------------------------------

    def _start(self) -> Position:
        """Have all ranks go on from the last checkpoint, or begin alike."""
        position, found = self._restore()
        if not found and isinstance(self._strategy, DataParallelStrategy):  # rank 0's, for good measure
            self._strategy.unpack([self._communicator.broadcast_bytes(self._strategy.whole(), name="start.fresh")])
        self._strategy.require_equal()
        self._saver.go_on(position.steps_done)
        if not found and self._config.train.on_nonfinite == "rollback":
            self._save(position)  # there has to be one to go back to
        return position

    def _restore(self) -> tuple[Position, bool]:
        """Give every rank what it holds of the last checkpoint, and the position; whether there is one."""
        find = partial(retry, self._checkpoints.latest) if self._context.rank == 0 else None
        latest = run_keeping_alive(self._communicator, find, name="start.latest")
        position, state = self._whole(*latest) if latest else (Position(), ())
        told = self._communicator.broadcast_bytes(json.dumps([position.model_dump(), len(state)]).encode(), name="start.position")
        values, parts = json.loads(told)
        if parts:
            states = _parts(state)
            self._strategy.unpack(self._communicator.broadcast_bytes(next(states, b""), name=f"start.state.{number}")
                                 for number in range(parts))
        return Position.model_validate(values), parts > 0

    def _whole(self, checkpoint: Checkpoint | None, damaged: Sequence[SparkringError]) -> tuple[Position, Sequence[bytes]]:
        """Of rank 0's latest whole checkpoint, or no state; damaged ones are named in the events."""
        for error in damaged:
            self._events.write("warning", text=str(error))
        return (checkpoint.document.position, checkpoint.state) if checkpoint else (Position(), ())

    def _write_start(self, position: Position) -> None:
        self._events.write(
            "start", size=self._context.size, host=socket.gethostname(), pid=os.getpid(), device=self._context.device,
            lanes=self._job.lanes, seed=self._config.train.seed, batch_rows=self._config.train.step_rows,
            dataset_url=self._job.dataset_url, dataset_version=self._job.dataset_version, content_id=self._manifest.content_id,
            manifest_sha256=Dataset(self._job.dataset_url).manifest_sha256(self._job.dataset_version), reduction=self._strategy.description,
            readers=self._witnesses, shards=self._layout.mesh.shards if self._layout else 1,
            steps_per_epoch=self._steps, epochs=self._config.train.epochs, epoch=position.epoch, step=position.step,
            resumed=position.receipts)

    # -- an epoch ----------------------------------------------------------------------------------------------------

    def _epoch(self, position: Position) -> Position:
        """Train from ``position`` to the end of its epoch, judge, checkpoint; returns the next epoch's position.

        Where ranks are to stop before that end: checkpoint, and return where they are.
        """
        began, earlier = time.perf_counter(), position.seconds
        self._digest = 0
        self._sampled = sampled_step(first=position.step, steps=self._steps)
        waiting = time.perf_counter()
        with closing(self._batches(position)) as batches:
            for batch in batches:
                position, due = self._step(position, batch, data_s=time.perf_counter() - waiting)
                if self._spoiled:
                    return self._go_back(position)
                if due and position.step < self._steps:
                    position = self._shared(position.model_copy(update={"seconds": earlier + time.perf_counter() - began}))
                    self._save(position)
                    if self._stopping:
                        return position
                self._saver.after(position.steps_done)
                waiting = time.perf_counter()
        position = self._shared(position)
        self._require_exact(position)
        self._plan.epoch_ends()
        return self._judged(position.model_copy(update={
            "epoch": position.epoch + 1, "step": 0, "seconds": earlier + time.perf_counter() - began, "to_evaluate": True}))

    def _judged(self, position: Position) -> Position:
        """Judge the epoch before ``position``, checkpoint; returns where to go on.

        Where ranks are asked to stop meanwhile, that is where they stand: who goes on judges first.
        """
        began = time.perf_counter()
        interruptible = Interruptible(self._loaders["validation"], self._communicator, lambda: self._signals.now().stop > 0)
        try:
            validation = evaluate(self._strategy.predict(interruptible), self._communicator, self._manifest)
        except Interrupted:
            self._stopping = True
            self._save(position)
            return position
        following = Position(epoch=position.epoch, steps_done=position.steps_done, receipts=position.receipts)
        if self._context.rank == 0:
            self._events.write("epoch", epoch=position.epoch - 1, seconds=round(position.seconds + time.perf_counter() - began, 3),
                               rows=position.rows, train_loss=_mean_loss(position), exact=True,
                               digest=position.rows_digest, validation=validation)
        self._save(following, validation)
        return following

    def _step(self, position: Position, batch: Batch, *, data_s: float) -> tuple[Position, bool]:
        """One optimizer step and its event; whether a checkpoint is due."""
        train = self._config.train
        rate = learning_rate(position.steps_done, total_steps=train.epochs * self._steps, config=train.optimizer)
        left_out = self._rollbacks.leaves_out(position.steps_done)
        result = LEFT_OUT if left_out else self._strategy.step(batch, rate, self._votes(position))
        self._stopping = result.signals.stop > 0
        digest = rows_digest(batch.tensors[ROW_ID].numpy()) if self._receipts else 0
        self._digest = add([self._digest, digest])
        if position.step == self._sampled and not left_out:
            self._write_timeline(position)
        self._write_step(position, batch, result, rate, data_s, digest)
        self._plan.step(data_s + result.cost.compute_s + result.cost.comm_s)
        self._seconds.add(data_s, result.cost.compute_s, result.cost.comm_s)
        if not result.updated and not left_out:
            self._not_finite(position, result)
        steps_done = position.steps_done + 1
        due = self._saver.due(result.signals) or self._stopping
        return position.model_copy(update={
            "step": position.step + 1, "steps_done": steps_done,
            "loss_sum": position.loss_sum + (result.loss * batch.global_rows if result.updated else 0.0),
            "rows": position.rows + batch.global_rows,
            "rows_left_out": position.rows_left_out + (0 if result.updated else batch.global_rows)}), due

    def _votes(self, position: Position) -> Signals:
        """What this rank says in the step that begins."""
        return self._signals.now(due=self._saver.wants(position.steps_done + 1), writing=self._saver.writing)

    def _not_finite(self, position: Position, result: StepResult) -> None:
        """A step of which no update came, on all ranks alike."""
        where = f"step {position.step} of epoch {position.epoch}: the loss is {result.loss}" + (
            "" if not math.isfinite(result.loss) else ", but a gradient is NaN or infinite")
        if self._config.train.on_nonfinite == "stop":
            raise NotFinite(f"{where}; nothing was updated. Lower train.optimizer.lr, set train.optimizer.clip_norm, look at the rows of "
                            "that step, or set train.on_nonfinite=skip to go on without them.")
        if self._config.train.on_nonfinite == "rollback":
            self._spoiled = where
        elif self._context.rank == 0:
            self._events.write("warning", text=f"{where}; skipped")

    def _go_back(self, position: Position) -> Position:
        """From a step that was not finite to the last checkpoint, on all ranks, whose events go on as those of a new generation.

        Args:
            position: After that step.
        Raises:
            NotFinite: there is no checkpoint, or the run has gone back to it often enough.
        """
        where, self._spoiled = self._spoiled, ""
        self._saver.abandon()
        to, found = self._restore()
        said = self._rollbacks.back(to=to.steps_done, spoiled=position.steps_done - 1) if found else None
        if said is None:
            often = f"train.recovery.rollbacks={self._config.train.recovery.rollbacks} is used up" if found else "there is no checkpoint"
            raise NotFinite(f"{where}; {often}, so the run does not go back again. Lower train.optimizer.lr, set "
                            "train.optimizer.clip_norm, or look at the rows of that step.")
        self._strategy.require_equal()
        self._events.write("rollback", epoch=position.epoch, step=position.step - 1, steps_done=to.steps_done, text=f"{where}; {said}")
        self._events.next_generation()
        self._saver.go_on(to.steps_done)
        self._write_start(to)
        self._receipts = self._receipt_maker()
        self._digest, self._sealed = 0, ""
        return to

    def _write_timeline(self, position: Position) -> None:
        """What this rank did in the step, where it follows a schedule; before the step's own record, whose hash its receipt is."""
        record = self._strategy.step_record()
        if record is not None:
            self._events.write("timeline", epoch=position.epoch, step=position.step, **record)

    def _write_step(self, position: Position, batch: Batch, result: StepResult, rate: float, data_s: float, digest: int) -> None:
        recorded: dict[str, Any] = self._receipts.step(position.epoch, position.step) if self._receipts else {}
        if self._receipts and self._config.train.record_rows:
            recorded["row_ids"] = batch.tensors[ROW_ID].tolist()
        self._events.write(
            "step", epoch=position.epoch, step=position.step, rows=batch.rows if self._receipts else 0,
            global_rows=batch.global_rows, loss=result.loss if math.isfinite(result.loss) else None, lr=rate,
            data_s=round(data_s, 6), compute_s=round(result.cost.compute_s, 6), comm_s=round(result.cost.comm_s, 6), digest=to_hex(digest),
            **recorded, **({"left_out": True} if result is LEFT_OUT else {}))
        self._sealed = self._events.head

    def _shared(self, position: Position) -> Position:
        """The position with all ranks' row digests and the hash of their receipts; every rank calls this at the same step.

        The ranks exchange their seconds with it: rank 0 reports which rank slows the others down.
        """
        mine = self._digest.to_bytes(8, "big") + bytes.fromhex(self._sealed) + pack(self._seconds.take())
        self._digest = 0
        gathered = self._communicator.gather(torch.tensor([list(mine)], dtype=torch.uint8), name="position")  # one round for all
        everyone = [bytes(rank.tolist()) for rank in gathered]
        digests = [int.from_bytes(rank[:8], "big") for rank in everyone]
        for news in self._slow.update([unpack(rank[-PACKED:]) for rank in everyone]) if self._context.rank == 0 else ():
            self._events.write("slow", epoch=position.epoch, step=position.step, **asdict(news))
        return position.model_copy(update={"rows_digest": to_hex(add([from_hex(position.rows_digest), *digests])),
                                           "receipts": combined([rank[8:-PACKED].hex() for rank in everyone])})

    def _require_exact(self, position: Position) -> None:
        """Every row of the split exactly once: as many rows, and the same sum of their hashes."""
        split = self._manifest.splits["train"]
        if (position.rows, position.rows_digest) != (split.rows, split.rows_digest):
            raise DatasetError(
                f"epoch {position.epoch} read {position.rows} rows with digest {position.rows_digest}, the manifest of version "
                f"{self._manifest.version} says {split.rows} and {split.rows_digest}: some row came twice or not at all. "
                "The files changed after the commit; prepare a new version.")

    def _save(self, position: Position, validation: dict[str, float] | None = None) -> None:
        """Begin a checkpoint."""
        train, total_steps = self._config.train, self._config.train.epochs * self._steps
        self._saver.save(CheckpointDocument(
            position=position, validation=validation, content_id=self._manifest.content_id, dataset_version=self._manifest.version,
            seed=train.seed, lanes=self._job.lanes, batch_rows=train.step_rows, code_version=__version__, torch_version=torch.__version__,
            config=self._config.model_dump(mode="json", include={"model", "train"}),
            lr=learning_rate(position.steps_done, total_steps=total_steps, config=train.optimizer),
            layout=str(self._layout or f"{self._context.size} ranks, each with the whole model")))

    def _batches(self, position: Position) -> Generator[Batch]:
        """The rest of an epoch; closed early, it ends the threads that read ahead."""
        yield from self._loaders["train"].epoch(position.epoch, first_step=position.step)

    def _receipt_maker(self) -> ReceiptMaker | None:
        """None where another rank gives receipts for this one's rows."""
        return ReceiptMaker(self._loaders["train"].order, batch_rows=self._config.train.step_rows, rank=self._witness,
                            num_ranks=self._witnesses) if self._witness < self._witnesses else None

    # -- end ---------------------------------------------------------------------------------------------------------

    def _finish(self, position: Position, *, resumed_at: int) -> TrainSummary:
        """Make the best epoch's weights the run's model, if the run is done."""
        if position.epoch < self._config.train.epochs or position.to_evaluate:
            return TrainSummary(steps=position.steps_done, resumed_at=resumed_at, receipts=position.receipts, interrupted=True,
                                failed_checkpoints=self._saver.failures)
        best = retry(self._checkpoints.best)
        if best is None or best.document.validation is None:
            raise SparkringError(f"{self._job.run_url} has no whole checkpoint of a finished epoch left; run the same command again.")
        card = ModelCard(
            name=self._config.name, model=self._config.model, task=self._manifest.task, preprocessing=self._manifest.preprocessing,
            dataset_url=self._job.dataset_url, dataset_version=self._job.dataset_version, content_id=self._manifest.content_id,
            epoch=best.document.position.epoch, step=best.document.position.steps_done, validation=best.document.validation,
            code_version=__version__)
        save_model(self._job.run_url, weights_of(_parts(best.state)), card)
        return TrainSummary(steps=position.steps_done, resumed_at=resumed_at, best_epoch=card.epoch, validation=card.validation,
                            receipts=position.receipts, failed_checkpoints=self._saver.failures)


def _parts(state: Sequence[bytes]) -> Iterator[bytes]:
    """Each part of a state, one after the other; storage that is away for a moment is waited for."""
    def part(number: int) -> bytes:
        return state[number]

    return (retry(partial(part, number)) for number in range(len(state)))


def _mean_loss(position: Position) -> float:
    """Over the rows that were learned from."""
    learned = position.rows - position.rows_left_out
    return position.loss_sum / learned if learned else math.nan


def sampled_step(*, first: int, steps: int) -> int:
    """The step of an epoch whose timeline is kept: the second one of full rows, since the first one still warms up, or else the first.

    Args:
        first: The step with which this epoch begins or goes on.
        steps: Of the epoch; the last one may have fewer rows.
    """
    return first + 1 if first + 1 < steps - 1 else first
>>>>>>> etl
