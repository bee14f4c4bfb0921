"""One training run: ``train``, with its ring."""

from __future__ import annotations

from math import lcm
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkring.conf.schema.base.section import LocalPath, Positive, Seconds, Section, Seed
from sparkring.conf.schema.optimizer import OptimizerConfig
from sparkring.conf.schema.parallel import ParallelConfig
from sparkring.conf.schema.strategy import ExactConfig, StaleSyncConfig, StrategyConfig
from sparkring.errors import ConfigError

HeldOutMetric = Literal["loss", "auc", "average_precision", "accuracy", "rmse", "mae", "r2"]
"""A held-out metric that may choose the best epoch; the task decides which ones there are."""
SMALLEST_DEFAULT_BATCH, LARGEST_DEFAULT_BATCH = 32, 1024
Allreduce = Literal["auto", "horovod", "ring", "tree", "two_level"]
WireType = Literal["exact", "fp16", "bf16"]
RegressionLoss = Literal["squared", "absolute", "huber"]
STEPS_AN_EPOCH = 50
"""Optimizer steps that an epoch has at least by default, where the rows suffice."""


class RingConfig(Section):
    """How ranks are started, joined and watched."""

    launcher: Literal["barrier", "horovod.spark"] = "barrier"
    """``barrier``: a Spark barrier stage, works everywhere. ``horovod.spark``: upstream's own launcher (needs a
    SparkContext)."""
    shared_memory: bool = True
    """Sum gradients of ranks on one host through shared memory before the ring between hosts."""
    allreduce: Allreduce = "horovod"
    """Who sums gradients between hosts, and how (docs/how-to/hosts.md). ``horovod``: its ring of one rank a host. The
    others use connections of their own: ``ring`` and ``tree`` (recursive halving and doubling) between all ranks,
    ``two_level`` first within each host, then the cheapest between hosts. ``auto``: the cheapest of all for each buffer's
    size and the hosts, by measured costs."""
    wire: WireType = "exact"
    """The type in which gradients travel between hosts. ``fp16`` and ``bf16`` halve the bytes and are not exact: what
    rounding takes from a gradient is added to the next step's (error feedback). Needs another ``allreduce`` than
    ``horovod``."""
    threads_per_rank: Positive = 1
    """CPU threads of a rank. With ``device: cuda`` a rank's task also asks Spark for so many cores (docs/how-to/gpus.md)."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model lives. ``cuda``: on a GPU of the rank's own, dealt out by the launcher on a local master, else by
    Spark (docs/how-to/gpus.md)."""
    allow_cpu_fallback: bool = False
    """With ``device: cuda``: train on the CPU where no GPU is usable, instead of refusing."""
    allow_plaintext: bool = False
    """Send gradients between hosts in plaintext even where Spark encrypts its own traffic (SECURITY.md)."""
    start_timeout_s: Seconds = 30.0
    """Seconds for Spark to grant every slot before the request is refused, and, with 10 more, for the tasks to come
    to their meeting."""
    deadline_s: Seconds = 120.0
    """Seconds that a rank waits for another one, or for a row group from storage, before it fails. Horovod's and Gloo's
    own timeouts are set to it."""
    heartbeat_s: Seconds = 0.5
    """With ``launcher: barrier``: seconds between two checks of the other ranks."""
    fork_ranks: bool = True
    """With ``launcher: barrier`` on Linux: fork ranks off a process that has torch and Horovod loaded and stays, with
    750 MB resident, as long as Spark keeps its Python worker. Saves the seconds of a fresh process's imports, from
    the second launch on (docs/adr/0007)."""

    @model_validator(mode="after")
    def _launcher_heeds_all(self) -> Self:
        unheeded = [f"train.ring.{name}={getattr(self, name)}" for name in ("heartbeat_s", "fork_ranks")
                    if getattr(self, name) != type(self).model_fields[name].default]
        if self.launcher == "horovod.spark" and unheeded:
            raise ValueError(f"{', '.join(unheeded)} has no effect with launcher horovod.spark; leave it out, or use launcher: barrier")
        return self

    @model_validator(mode="after")
    def _wire_is_of_own_connections(self) -> Self:
        if self.wire != "exact" and self.allreduce == "horovod":
            raise ValueError(f"train.ring.wire={self.wire} needs connections of our own, and train.ring.allreduce=horovod has none; set "
                             "train.ring.allreduce to auto, or train.ring.wire to exact")
        if self.allreduce != "horovod" and self.device == "cuda":
            raise ValueError(f"train.ring.allreduce={self.allreduce} sums on CPUs, and with train.ring.device=cuda NCCL sums on "
                             "GPUs; leave train.ring.allreduce out, or set train.ring.device to cpu")
        return self


class RecoveryConfig(Section):
    """What happens when ranks, executors or machines fail."""

    restarts: Annotated[int, Field(ge=0)] = 3
    """Most restarts from one checkpoint; a new checkpoint starts the count again. 0: never restart."""
    shrink: bool = True
    """Continue with fewer ranks if slots stay missing after a failure, and with more once they are back."""
    min_ranks: Positive = 1
    """Fewest ranks to continue with."""
    wait_for_slots_s: Annotated[float, Field(ge=0)] = 10.0
    """Seconds to wait for lost slots after a failure, before the run shrinks."""
    rollbacks: Annotated[int, Field(ge=0)] = 3
    """With ``on_nonfinite: rollback``: most returns to one checkpoint before the run fails."""
    leave_out_after: Positive = 2
    """Consecutive failures of one host after which the run excludes it."""


class EarlyStoppingConfig(Section):
    """When a run ends before its last epoch: once its held-out metric, measured after each epoch, has stopped improving.

    The optimizer's schedule still spans all epochs.
    """

    patience_epochs: Positive = 3
    """Epochs in a row without a better value after which the run ends."""
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    """A value is better only if it differs from the best one by more than this."""
    metric: HeldOutMetric = "loss"
    """The epoch with the best value becomes the model, by however little it is better."""


def default_batch_rows(train_rows: int) -> int:
    """The largest power of two, from 32 to 1024, that cuts so many rows into ``STEPS_AN_EPOCH`` steps or more; 32 if none does."""
    batch_rows = LARGEST_DEFAULT_BATCH
    while batch_rows > SMALLEST_DEFAULT_BATCH and train_rows < STEPS_AN_EPOCH * batch_rows:
        batch_rows //= 2
    return batch_rows


class TrainConfig(Section):
    """One training run."""

    # A new key that does not change what is learned goes into FREE_TO_CHANGE of spark_jobs/run/identity.py, too.
    num_ranks: Positive = 2
    """Horovod ranks: one process, one Spark slot each."""
    epochs: Positive = 5
    """Passes over the train split."""
    batch_rows: Positive | None = None
    """Rows of one optimizer step over all ranks together: the global batch. Null: a power of two from 32 to 1024 that gives an epoch at
    least 50 steps where the train split has rows enough."""
    seed: Seed = 1
    """Seed of the initial weights and of the row order."""
    lanes: Positive | None = None
    """Virtual streams that the row order consists of; fixed at a run's first start. Default: a multiple of num_ranks,
    at least 24."""
    precision: Literal["float32", "bf16", "float64"] = "float32"
    """``bf16`` is mixed: layers compute in bfloat16, and stages exchange their outputs in that type; parameters,
    gradients and their sums, the optimizer, losses and statistics of norms stay float32. ``float64`` is for comparing
    runs."""
    loss: RegressionLoss = "squared"
    """The loss of a row with ``prepare.task: regression``, e being label minus prediction in standard deviations of the
    train labels. squared: e^2, so 1 is what always predicting the mean costs. absolute: |e|, less moved by outliers.
    huber: e^2 / 2 up to ``huber_delta``, then linear."""
    huber_delta: Annotated[float, Field(gt=0)] = 1.0
    """With ``loss: huber``: the error, in standard deviations, from which it counts linearly."""
    optimizer: OptimizerConfig = OptimizerConfig()
    strategy: StrategyConfig = ExactConfig()
    """How ranks train together (docs/how-to/strategies.md): a word, e.g. ``local_sgd``, or a section with its ``kind``."""
    bucket_mb: Annotated[float, Field(gt=0)] = 25.0
    """Gradients travel in flat buckets of about this size, in megabytes. Between hosts buckets are smaller if the network is
    small: then most of them travel during the backward pass."""
    checkpoint_steps: Positive = 200
    """Most optimizer steps that a failure may cost. A checkpoint is also written at the end of each epoch
    (docs/explanation/recovery.md)."""
    checkpoint_s: Seconds | None = None
    """Seconds after which a checkpoint is written in any case; null: only steps count."""
    keep_checkpoints: Positive = 3
    """Latest checkpoints to keep, beside the best one."""
    reader_threads: Positive = 1
    """Threads of a rank that read and decode row groups ahead."""
    memory_mb: Annotated[float, Field(gt=0)] = 1024.0
    """Memory of a rank for rows read ahead of their step; further rows wait in files on local disk."""
    cache_mb: Annotated[float, Field(gt=0)] | None = None
    """Local disk for copies of a remote dataset's files, shared by the ranks of a host; null: each epoch reads the
    remote files."""
    cache_folder: LocalPath | None = None
    """Folder of those copies on each host; default: the folder of temporary files."""
    early_stopping: EarlyStoppingConfig | None = None
    """When to end before the last epoch; null: never. The model is that of the epoch with the lowest held-out loss in any case, or with
    the best value of ``early_stopping.metric``."""
    record_rows: bool = False
    """Write every row id of every step into the events (8 bytes a row; for audits of small runs)."""
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """Action after a step whose loss or gradient is NaN or infinite, on all ranks. Such a step never updates the
    model. stop: fail. skip: continue. rollback: return to the last checkpoint and leave that step out
    (docs/explanation/recovery.md)."""
    recovery: RecoveryConfig = RecoveryConfig()
    parallel: ParallelConfig = ParallelConfig()
    """Stages; by default none, and every rank holds the whole model."""
    ring: RingConfig = RingConfig()

    @model_validator(mode="after")
    def _lanes_cover_the_ring(self) -> Self:
        if self.lanes is not None and self.lanes < self.num_ranks:
            raise ValueError(f"train.lanes={self.lanes} is less than train.num_ranks={self.num_ranks}, so some ranks would never get a "
                             f"row; set train.lanes to at least {self.num_ranks}, or leave it out")
        return self

    @model_validator(mode="after")
    def _delta_is_of_huber(self) -> Self:
        if self.loss != "huber" and self.huber_delta != type(self).model_fields["huber_delta"].default:
            raise ValueError(f"train.huber_delta={self.huber_delta:g} has no effect with train.loss={self.loss}; leave it out, or set "
                             "train.loss to huber")
        return self

    @model_validator(mode="after")
    def _only_exact_ranks_share_a_model(self) -> Self:
        kind, parallel = self.strategy.kind, self.parallel
        if kind == "exact":
            return self
        if parallel.pipelined or parallel.auto:
            raise ValueError(f"train.strategy={kind} has each rank compute with the whole model, and train.parallel cuts it or its rows; "
                             "leave train.parallel out, or set train.strategy to exact")
        if self.on_nonfinite == "rollback":
            raise ValueError(f"train.on_nonfinite=rollback needs to know the step that spoiled the model, and with train.strategy={kind} "
                             "ranks learn of one only later; set it to stop or skip")
        return self

    @model_validator(mode="after")
    def _wires_carry_exact_gradients_of_float32(self) -> Self:
        kind, ring = self.strategy.kind, self.ring
        if ring.wire != "exact" and kind != "exact":
            raise ValueError(f"train.ring.wire={ring.wire} rounds gradients, and train.strategy={kind} sends models; set train.ring.wire "
                             "to exact")
        if kind == "stale_sync" and ring.allreduce != "horovod":
            raise ValueError(f"train.ring.allreduce={ring.allreduce} is about sums over all ranks, and train.strategy=stale_sync has none; "
                             "leave train.ring.allreduce out")
        if ring.wire != "exact" and self.precision == "float64":
            raise ValueError(f"train.ring.wire={ring.wire} rounds gradients, and train.precision=float64 is for comparing runs exactly; "
                             "set train.ring.wire to exact, or train.precision to float32")
        return self

    @model_validator(mode="after")
    def _lars_sees_whole_layers(self) -> Self:
        name, shards = self.optimizer.name, self.parallel.shards
        if self.optimizer.needs_whole_layers and shards > 1:
            raise ValueError(f"train.optimizer.name={name} takes the norm of whole layers, and train.parallel.shards={shards} divides "
                             "them; choose another optimizer, or set shards to 1")
        return self

    @model_validator(mode="after")
    def _servers_leave_workers(self) -> Self:
        if self.num_ranks < self.fewest_ranks:
            raise ValueError(f"train.strategy.servers={self.fewest_ranks - 1} leaves none of {self.num_ranks} ranks to compute; "
                             "set it below train.num_ranks, or to peers")
        return self

    @model_validator(mode="after")
    def _stages_fill_the_ring(self) -> Self:
        if self.parallel.auto:
            return self
        shards, ranks = self.parallel.shards, sum(self.replicas) * self.parallel.shards
        if ranks != self.num_ranks:
            raise ValueError(f"train.parallel.replicas={list(self.replicas)} of {shards} shards are {ranks} ranks, "
                             f"train.num_ranks={self.num_ranks}; make them equal")
        replicas, micro_batches = self.replicas, self.num_micro_batches
        uneven = [count for count in replicas if micro_batches % count]
        if uneven:
            raise ValueError(f"train.parallel.micro_batches={micro_batches} is not a multiple of a stage's {uneven[0]} replicas, so some "
                             f"would idle; give a multiple of each of {list(replicas)}")
        if self.lanes is not None and self.lanes < micro_batches:
            raise ValueError(f"train.lanes={self.lanes} is less than train.parallel.micro_batches={micro_batches}, so some would never get "
                             f"a row; set train.lanes to at least {micro_batches}, or leave it out")
        return self

    def fitted_to(self, train_rows: int) -> Self:
        """This section with ``batch_rows`` filled in, for a train split of so many rows; the number of ranks does not matter."""
        return self if self.batch_rows is not None else self.changed(batch_rows=default_batch_rows(train_rows))

    def require_rows_together(self, what: str) -> None:
        """Check that ranks compute each micro-batch as one, which batch normalisation over its rows needs.

        Args:
            what: What normalises, e.g. ``model.norm=batch``.
        Raises:
            ConfigError: each rank has a model of its own.
        """
        if self.strategy.kind != "exact":
            raise ConfigError(f"{what} normalises over all rows of a micro-batch, which needs train.strategy: exact, and train.strategy is "
                              f"{self.strategy.kind}; set it to exact, or choose a network without batch normalisation")

    @property
    def fewest_ranks(self) -> int:
        """Ranks without which the strategy cannot do: one that computes, and those that only serve."""
        serving = self.strategy.servers if isinstance(self.strategy, StaleSyncConfig) else "peers"
        return 1 if serving == "peers" else 1 + serving

    @property
    def step_rows(self) -> int:
        """``batch_rows`` of a section that is fitted to its dataset."""
        assert self.batch_rows is not None, "fitted_to() comes first"
        return self.batch_rows

    @property
    def replicas(self) -> tuple[int, ...]:
        """Replicas of each stage."""
        return self.parallel.replicas or (max(1, self.num_ranks // self.parallel.shards),)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a step over all ranks: as configured, else one per replica, or 4 per stage if there are
        several stages.
        """
        if self.parallel.micro_batches is not None:
            return self.parallel.micro_batches
        even, stages = lcm(*self.replicas), len(self.replicas)
        return even if stages == 1 else even * -(-4 * stages // even)
