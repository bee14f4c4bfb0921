"""The memory, ranks and storage that a config needs, in numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sparkring.conf.schema import Config, SparkConfig, TrainConfig
from sparkring.pipelines.data.order.row_order import default_lanes

MB = 1_000_000
RANK_MB = 700
"""Memory of a rank before it holds a row: Python, torch and Horovod take 530 MB (measured), and the heap grows."""
SERVER_MB = 750
"""Resident memory of the process that ranks are forked from (measured). Ranks share most of it, but a container counts it again."""
SPARK_MB = 1500
"""Memory of a Spark driver or executor with the default heap."""
OPEN_AT_ONCE = 2
"""Copies of a decoded row group: one in the loader, one while a batch is made of it."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The needs of one job."""

    spark: SparkConfig
    train: TrainConfig
    workspace: str | None
    """None without a config, since nothing will be written."""
    row_group_mb: float
    """Decoded size of a row group."""

    @classmethod
    def of(cls, config: Config | None) -> Needs:
        """The needs of a config; without one, those of a small job on this machine."""
        if config is None:
            train = TrainConfig()
            return cls(spark=SparkConfig(master=f"local[{train.num_ranks}]"), train=train, workspace=None, row_group_mb=16.0)
        return cls(spark=config.spark, train=config.train, workspace=config.workspace, row_group_mb=config.prepare.row_group_mb)

    @property
    def local(self) -> bool:
        """Whether Spark and all ranks run on this machine."""
        return (self.spark.remote or self.spark.master or "").startswith("local")

    def memory_mb(self, ranks: int) -> float:
        """Memory that ``ranks`` ranks on one machine need, with their share of the open row groups; the loader spills what exceeds its
        budget.
        """
        lanes = self.train.lanes or default_lanes(self.train.num_ranks)
        open_mb = OPEN_AT_ONCE * self.row_group_mb * -(-lanes * ranks // self.train.num_ranks)
        return ranks * RANK_MB + min(open_mb, ranks * self.train.memory_mb)

    def container_mb(self, ranks: int) -> float:
        """Memory that YARN and Kubernetes may count for ``ranks`` ranks in one container."""
        forked = self.train.ring.fork_ranks and self.train.ring.launcher == "barrier"
        return self.memory_mb(ranks) + ranks * SERVER_MB * forked
