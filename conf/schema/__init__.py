"""The config as models: one file a section, a docstring a key.

May import: the rooms inside.
Not here: reading files and merging them (loading.py).

    base/                                    what all sections are made of
    data/                                    what prepare reads, keeps, splits and expects
    model.py, train.py, spark.py             what the jobs do, a section each
    parallel.py, strategy.py, optimizer.py   how a model is laid over ranks, how ranks train together, and by which steps: parts of train.py
    ingest.py, retrain.py, tracking.py       what happens night after night, and where runs are sent
    search.py, cross_validate.py             which values are tried, and how folds are trained
    whole.py                                 the config that holds them all

YAML keys are the field names; unknown keys are refused. A field without a default is required. How files, overrides
and unknown keys are handled is in ``conf/loading.py``. The message of a check names keys with their whole path and states a remedy
after ``"; "``. Sections and types of keys are imported from here; what few modules need (``BETWEEN_STAGES``,
``KEPT_BY_AUTO``, ``default_batch_rows``) from the file that defines it.
"""

from __future__ import annotations

from sparkring.conf.schema.base.section import SECRET, LocalPath, Positive, Seconds, Section, Seed, Share
from sparkring.conf.schema.data.derived import WAVES, BucketConfig, HashConfig, MomentConfig, NumberPart, Wave
from sparkring.conf.schema.data.expectations import ColumnExpectations, ExpectationsConfig
from sparkring.conf.schema.data.features import (
    ArrayCodec,
    AugmentConfig,
    FeaturesConfig,
    ImageCodec,
    ImageConfig,
    NumberType,
    RawConfig,
    TokensConfig,
)
from sparkring.conf.schema.data.numbers import FillBy, NumberConfig, Scale
from sparkring.conf.schema.data.prepare import TEXT_TASKS, PrepareConfig, Task
from sparkring.conf.schema.data.sources import (
    AnySource,
    DeltaSource,
    IcebergSource,
    JdbcSource,
    SourceConfig,
    StoredTable,
    TableSource,
    kind_of_source,
)
from sparkring.conf.schema.data.splits import ColumnSplit, FoldSplit, HashSplit, RandomSplit, SplitConfig, TimeSplit
from sparkring.conf.schema.model import ImageModelConfig, ModelConfig, Norm, TabularModelConfig, TextModelConfig
from sparkring.conf.schema.optimizer import OptimizerConfig
from sparkring.conf.schema.parallel import MOST_MICRO_BATCHES, ParallelConfig, Recompute, ScheduleName, TransportName
from sparkring.conf.schema.spark import ScoreConfig, SparkConfig
from sparkring.conf.schema.tracking import TrackingConfig
from sparkring.conf.schema.train import (
    Allreduce,
    EarlyStoppingConfig,
    HeldOutMetric,
    RecoveryConfig,
    RegressionLoss,
    RingConfig,
    TrainConfig,
    WireType,
)
from sparkring.conf.schema.whole import Config

__all__ = [
    "MOST_MICRO_BATCHES", "SECRET", "TEXT_TASKS", "WAVES", "Allreduce", "AnySource", "ArrayCodec", "AugmentConfig", "BucketConfig",
    "ColumnExpectations", "ColumnSplit", "Config", "DeltaSource", "EarlyStoppingConfig", "ExpectationsConfig",
    "FeaturesConfig", "FillBy", "FoldSplit", "HashConfig", "HashSplit", "HeldOutMetric", "IcebergSource",
    "ImageCodec", "ImageConfig", "ImageModelConfig", "JdbcSource", "LocalPath", "ModelConfig", "MomentConfig",
    "Norm", "NumberConfig", "NumberPart", "NumberType", "OptimizerConfig", "ParallelConfig", "Positive",
    "PrepareConfig", "RandomSplit", "RawConfig", "Recompute", "RecoveryConfig", "RegressionLoss", "RingConfig",
    "Scale", "ScheduleName", "ScoreConfig", "Seconds", "Section", "Seed", "Share", "SourceConfig",
    "SparkConfig", "SplitConfig", "StoredTable", "TableSource", "TabularModelConfig", "Task", "TextModelConfig",
    "TimeSplit", "TokensConfig", "TrackingConfig", "TrainConfig", "TransportName", "Wave", "WireType", "kind_of_source",
]
