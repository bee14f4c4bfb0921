"""The typed config: one frozen pydantic model a section, a docstring under each field, units in the names.

YAML keys are the field names; unknown keys are refused. A field without a default is required. How files, overrides
and unknown keys are handled is in ``loading.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
SECRET = "secret"  # noqa: S105 - the type of an error about a value that must not be shown
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """What all sections share: immutable, and strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class SourceConfig(Section):
    """One table that the query reads."""

    path: str
    """A file, folder or URL that Spark can read, or ``package:NAME/FILE`` for a file inside an installed Python package."""
    format: Literal["csv", "parquet", "json", "orc", "avro", "images", "idx", "text"] = "csv"
    """How the bytes are to be read. ``json`` is an object a line; ``avro`` needs Spark's jar for it. ``images``, ``idx`` (the MNIST
    family) and ``text`` are folders of files, and have columns of their own: ``path, label, image``; ``id, part, label, image``;
    ``path, content``."""
    columns: dict[str, str] = {}
    """The columns of a table to read and their Spark SQL types, e.g. ``{distance: double}``. Others in the file are left alone."""
    pattern: str = "*"
    """Names of the files to read in a folder of images or texts, e.g. ``*.py``."""
    if_missing: str = ""
    """What to do where ``path`` is not there; the error says it."""
    null_value: str = ""
    """Text that stands for a missing value in CSV, e.g. ``NA``."""

    @model_validator(mode="after")
    def _columns_fit_the_format(self) -> Self:
        folder = self.format in ("images", "idx", "text")
        if folder == bool(self.columns):
            raise ValueError(f"format {self.format} has columns of its own; name none" if folder else f"format {self.format} needs columns")
        return self


class TableSource(Section):
    """A table or view that the Spark session knows by name: of Hive, of another catalog, or temporary."""

    format: Literal["table"]
    table: str
    """E.g. ``shop.orders``. Its content is identified by a digest, so it is read once more than a file would be."""
    columns: Annotated[dict[str, str], Field(min_length=1)]
    """The columns to read and their Spark SQL types."""


class JdbcSource(Section):
    """What a query of a database yields. The database's driver must be on Spark's class path (``spark.jars.packages``)."""

    format: Literal["jdbc"]
    url: str
    """E.g. ``jdbc:postgresql://host/shop``. Without user and password: those come from the environment."""
    query: str
    """In the database's SQL. Its result is identified by a digest, so it runs once more than it would have to."""
    user_env: str | None = None
    """Environment variable of the driver program that holds the user's name."""
    password_env: str | None = None
    """Environment variable of the driver program that holds the password. It goes to the database and nowhere else."""
    driver: str | None = None
    """Java class of the driver, where the URL does not tell it."""
    columns: Annotated[dict[str, str], Field(min_length=1)]
    """The columns to read and their Spark SQL types."""

    @field_validator("url")
    @classmethod
    def _no_secret_inside(cls, url: str) -> str:
        if re.search(r"(password|passwd|pwd|secret|token)\s*=|//[^/@]*:[^/@]*@|:[^/:@]+/[^/@]+@", url, re.IGNORECASE):
            raise PydanticCustomError(SECRET, "a config holds no password; leave user and password out of the URL and set "
                                      "user_env and password_env to the names of environment variables (the URL is not shown)")
        return url


class DeltaSource(Section):
    """A Delta table as it was at one version. Delta's jar and session settings are the user's (docs/preparing.md)."""

    format: Literal["delta"]
    path: str
    """Folder or URL of the table."""
    version: Annotated[int, Field(ge=0)]
    """The version to read; later ones change nothing."""
    columns: Annotated[dict[str, str], Field(min_length=1)]
    """The columns to read and their Spark SQL types."""


class IcebergSource(Section):
    """An Iceberg table as it was at one snapshot. Iceberg's jar and catalog are the user's (docs/preparing.md)."""

    format: Literal["iceberg"]
    table: str
    """By catalog, database and name, e.g. ``lake.shop.orders``."""
    snapshot_id: int
    """The snapshot to read; later ones change nothing."""
    columns: Annotated[dict[str, str], Field(min_length=1)]
    """The columns to read and their Spark SQL types."""


StoredTable = TableSource | JdbcSource | DeltaSource | IcebergSource
"""Sources that are tables of something else than files named by the config."""


def kind_of_source(value: object) -> str:
    """The format of a source that is a table of its own; ``csv`` stands for all kinds of files."""
    given = value.get("format") if isinstance(value, Mapping) else getattr(value, "format", None)
    return str(given) if given in ("table", "jdbc", "delta", "iceberg") else "csv"


AnySource = Annotated[
    Annotated[SourceConfig, Tag("csv")] | Annotated[TableSource, Tag("table")] | Annotated[JdbcSource, Tag("jdbc")]
    | Annotated[DeltaSource, Tag("delta")] | Annotated[IcebergSource, Tag("iceberg")], Discriminator(kind_of_source)]
"""Whatever the query can read, told apart by ``format``."""


class AugmentConfig(Section):
    """Random changes to train images, drawn anew each epoch from the run's seed and the row's id."""

    flip: bool = False
    """Mirror left to right, every second time."""
    crop_padding: Annotated[int, Field(ge=0)] = 0
    """Shift by up to this many pixels each way; zeros come in."""


class ImageConfig(Section):
    """A column of image files: how they are kept, and how the network sees them."""

    column: str
    """A binary column of the query: one file a row, of any kind that OpenCV reads (PNG, JPEG, WebP, TIFF, BMP ...)."""
    channels: Literal[1, 3] = 3
    """1: grey. 3: red, green, blue."""
    size: tuple[Positive, Positive] | None = None
    """(height, width): the middle of each image in these proportions, scaled. Default: as they are; all must be equal then."""
    codec: Literal["png", "jpeg"] = "png"
    """How the dataset keeps pixels: without loss, or smaller. A file that is so already keeps its bytes."""
    jpeg_quality: Annotated[int, Field(ge=1, le=100)] = 90
    augment: AugmentConfig | None = None
    """Changes of train images; none by default."""


class TokensConfig(Section):
    """A column of texts: joined, cut into rows of equally many tokens, each of which is predicted from those before it."""

    column: str
    """A string column of the query, or a binary one that holds UTF-8: a document a row."""
    document: str
    """A column of the query that names the document; its hash decides the order in which documents are joined."""
    length: Annotated[int, Field(ge=2)] = 256
    """Tokens of a row."""
    tokenizer: str | None = None
    """A ``tokenizer.json`` of the library tokenizers. Default: a token a byte."""
    pack_mb: Annotated[float, Field(gt=0)] = 4.0
    """Text that is joined together, in megabytes: what one task works on. Each ends in one row that padding fills up."""


class RawConfig(Section):
    """A column that the dataset keeps as it is, as a tensor of its own name. The shipped networks do not take it; loops of one's own do."""

    column: str
    """A column of the query: a number or boolean, or an array of numbers."""
    dtype: Literal["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64"]
    """Of one number, in the dataset and in the tensor; one that it cannot hold stops the job."""
    shape: tuple[Positive | None, ...] = ()
    """Of a row's array, in C order; empty for a single number. At most one axis may be null: its length differs from row to row."""
    codec: Literal["ndarray", "compressed_ndarray"] = "ndarray"
    """How arrays are kept."""
    pad: float | None = None
    """Fills ragged arrays up to ``pad_to`` in batches."""
    pad_to: Positive | None = None
    """Length of the null axis in batches; longer arrays are cut."""

    @model_validator(mode="after")
    def _one_ragged_axis(self) -> Self:
        ragged = self.shape.count(None)
        if ragged > 1:
            raise ValueError(f"shape={list(self.shape)} has {ragged} axes that differ from row to row, at most one may")
        if (ragged == 1) != (self.pad is not None) or (self.pad is None) != (self.pad_to is None):
            raise ValueError("a shape with a null axis needs pad and pad_to, another takes neither")
        return self


class FeaturesConfig(Section):
    """Columns of the query's result that the model may look at."""

    numeric: tuple[str, ...] = ()
    """Columns that become one standardised float32 each; a null becomes the train mean."""
    categorical: tuple[str, ...] = ()
    """Columns that become one integer id each, from a vocabulary of the train split; id 0 is null or never seen."""
    image: ImageConfig | None = None
    """A column of image files."""
    tokens: TokensConfig | None = None
    """A column of texts; it stands alone, for the task next_token."""
    raw: tuple[RawConfig, ...] = ()
    """Columns that are kept as they are: numbers of any width, fixed and ragged arrays."""

    @model_validator(mode="after")
    def _some_and_distinct(self) -> Self:
        names = [*self.numeric, *self.categorical, *([self.image.column] if self.image else []), *(raw.column for raw in self.raw)]
        if not names and not self.tokens:
            raise ValueError("no features: name at least one column under numeric, categorical, image, tokens or raw")
        if names and self.tokens:
            raise ValueError(f"tokens stand alone, found {', '.join(names)} beside them; leave one or the other out")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"features named twice: {', '.join(twice)}")
        return self


class TimeSplit(Section):
    """Train, validation and test by time: older rows train, newer rows judge."""

    by: Literal["time"] = "time"
    column: str
    """A timestamp column of the query's result."""
    validation_from: datetime
    """First moment that belongs to validation (UTC); earlier rows train."""
    test_from: datetime
    """First moment that belongs to test (UTC)."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.validation_from >= self.test_from:
            raise ValueError(f"validation_from={self.validation_from} is not before test_from={self.test_from}")
        return self


class _ShareSplit(Section):
    """What splits by shares have in common."""

    validation_share: Share = 0.1
    """Share that judges during training."""
    test_share: Share = 0.1
    """Share that judges at the end; what is left trains."""
    seed: Seed = 1
    """Another seed deals the rows out anew."""

    @model_validator(mode="after")
    def _some_train(self) -> Self:
        if self.validation_share + self.test_share >= 1:
            raise ValueError(f"validation_share={self.validation_share} and test_share={self.test_share} leave nothing to train on")
        return self


class HashSplit(_ShareSplit):
    """By the hash of a key: rows with an equal key stay together, in whatever file they are and however many rows come later."""

    by: Literal["hash"]
    column: str
    """The key, a column of the query's result: a customer, a patient, a file."""


class RandomSplit(_ShareSplit):
    """At random: by the hash of the row id."""

    by: Literal["random"]


class FoldSplit(Section):
    """One of k folds for cross-validation: over ``fold`` = 0 .. k - 1 each key tests once and validates once."""

    by: Literal["fold"]
    column: str
    """The key, a column of the query's result; rows with an equal key are in one fold. The row id deals out single rows."""
    folds: Annotated[int, Field(ge=3)]
    """k: one fold tests, one validates, so at least 3."""
    fold: Annotated[int, Field(ge=0)]
    """The fold that tests; the next one (after the last one the first) validates."""
    seed: Seed = 1
    """Another seed deals the keys out anew."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.fold >= self.folds:
            raise ValueError(f"fold={self.fold} is none of the {self.folds} folds; they are 0 to {self.folds - 1}")
        return self


class ColumnSplit(Section):
    """As a column says, for data that comes with its splits."""

    by: Literal["column"]
    column: str
    """A text column of the query's result: ``train``, ``validation`` or ``test``."""


def _kind_of_split(value: object) -> str:
    """The ``by`` of a split; time where nothing is said."""
    return str(value.get("by", "time") if isinstance(value, dict) else getattr(value, "by", None))


SplitConfig = Annotated[
    Annotated[TimeSplit, Tag("time")] | Annotated[HashSplit, Tag("hash")] | Annotated[RandomSplit, Tag("random")]
    | Annotated[FoldSplit, Tag("fold")] | Annotated[ColumnSplit, Tag("column")],
    Discriminator(_kind_of_split, custom_error_type="no_such_split", custom_error_message="by must be time, hash, random, fold or column")]
"""How rows are split, told apart by the key ``by``."""


class ColumnExpectations(Section):
    """What a column of the rows to be written must be like; what is not said is not asked."""

    max_null_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of rows that may be null."""
    min: float | None = None
    """Least value; nulls aside."""
    max: float | None = None
    """Greatest value; nulls aside."""
    unique: bool = False
    """No value twice; nulls aside."""
    allowed: tuple[str | int | float, ...] = ()
    """All values that may be there; nulls aside."""
    max_mean_shift: Annotated[float, Field(gt=0)] | None = None
    """For a numeric feature: how far the mean of train rows may be from the parent version's, in that one's standard deviations."""
    max_psi: Annotated[float, Field(gt=0)] | None = None
    """For a feature: population stability index of train rows against the parent version's; 0.1 is a small shift, 0.25 a large one."""

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        return self


class ExpectationsConfig(Section):
    """What the rows of a version must be like, checked before any of them is written; a breach stops the commit."""

    min_rows: Positive | None = None
    """Rows of all splits together, at least."""
    max_rows: Positive | None = None
    """Rows of all splits together, at most."""
    columns: dict[str, ColumnExpectations] = {}
    """By column of the query's result."""


class PrepareConfig(Section):
    """From source tables to a committed dataset version."""

    sources: dict[str, AnySource]
    """Tables by the name that the query uses."""
    query: str
    """Spark SQL over ``sources`` that yields one row an example, with a row id, a label, a split column and features."""
    row_id: str = "row_id"
    """Column of the result that identifies a row: a unique, non-null bigint."""
    task: Literal["binary", "multiclass", "next_token"] = "binary"
    """What is predicted: a label of 0 or 1, one of several classes, or each next token of a text."""
    label: str = ""
    """Column of the result to predict; rows where it is null are left out. Binary: 0 or 1. Multiclass: a number or text, each
    value of the train split being a class. Next token: none, the text is its own label."""
    features: FeaturesConfig
    split: SplitConfig
    expectations: ExpectationsConfig = ExpectationsConfig()
    """None by default. They need the extra ``sparkring[expectations]``."""
    min_category_rows: Positive = 20
    """Train rows that a category needs to get an id of its own; rarer ones share id 0."""
    row_group_mb: Annotated[float, Field(gt=0)] = 16.0
    """Decoded size of a Parquet row group, in megabytes: the unit in which ranks read."""
    min_row_groups: Positive = 96
    """A split is cut into at least this many row groups where it has the rows, so that every lane has its own."""
    num_files: Positive = 4
    """Parquet files a split."""
    seed: Seed = 20130101
    """Seed of the global shuffle before writing."""
    shuffle: bool = True
    """False: rows are written as the query yields them, which is faster, but not the same bytes each time. For rows that are in a
    random order already: training mixes row groups and what lies near each other, not a whole sorted table."""

    @model_validator(mode="after")
    def _task_fits(self) -> Self:
        text = self.task == "next_token"
        if text != (self.features.tokens is not None):
            raise ValueError("task next_token and features.tokens go together; give both or neither")
        if text == bool(self.label):
            raise ValueError("task next_token has no label; the text is its own" if text else f"task {self.task} needs a label")
        return self


class TabularModelConfig(Section):
    """The network for tables: an embedding for each category column, then a multilayer perceptron."""

    kind: Literal["tabular"] = "tabular"
    hidden: tuple[Positive, ...] = (256, 128, 64)
    """Widths of the hidden layers."""
    max_embedding: Positive = 32
    """Largest width of an embedding; smaller vocabularies get smaller ones."""


class ImageModelConfig(Section):
    """The network for images: a small residual convnet without batch statistics."""

    kind: Literal["image"]
    widths: tuple[Positive, ...] = (32, 64, 128)
    """Channels of each stage; every stage but the first halves height and width."""


class TextModelConfig(Section):
    """The network for tokens: a causal transformer decoder."""

    kind: Literal["text"]
    width: Positive = 128
    """Of a token's vector."""
    layers: Positive = 4
    heads: Positive = 4
    tied: bool = True
    """Use the embedding as the output matrix too."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width={self.width} is no multiple of heads={self.heads}")
        return self


def _model_kind(value: object) -> object:
    """A model that does not say its kind is the one for tables."""
    return value.get("kind", "tabular") if isinstance(value, dict) else getattr(value, "kind", None)


ModelConfig = Annotated[
    Annotated[TabularModelConfig, Tag("tabular")] | Annotated[ImageModelConfig, Tag("image")] | Annotated[TextModelConfig, Tag("text")],
    Discriminator(_model_kind, custom_error_type="kind", custom_error_message="there is no such kind; give tabular, image or text")]
"""Any of the networks, told apart by ``kind``."""


class OptimizerConfig(Section):
    """The optimizer and its learning-rate schedule."""

    name: Literal["sgd", "adam", "adamw"] = "adamw"
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate; never scaled by the number of ranks, since the global batch does not depend on it."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of sgd; the others ignore it."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: Literal["constant", "cosine"] = "cosine"
    """``cosine`` falls to zero over the run after the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the rate rises linearly from zero."""


class RingConfig(Section):
    """How ranks are started, joined and watched."""

    launcher: Literal["barrier", "horovod.spark"] = "barrier"
    """``barrier``: a Spark barrier stage, works everywhere. ``horovod.spark``: upstream's own launcher (needs a SparkContext)."""
    shared_memory: bool = True
    """Sum gradients of ranks on one host through shared memory before the ring between hosts."""
    threads_per_rank: Positive = 1
    """CPU threads of a rank."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model lives. ``cuda`` takes the one GPU that Spark assigned to the rank's task."""
    allow_cpu_fallback: bool = False
    """With ``device: cuda``: train on the CPU where no GPU is usable, instead of refusing."""
    start_timeout_s: Seconds = 30.0
    """Seconds for Spark to grant every slot before the request is refused."""
    deadline_s: Seconds = 120.0
    """Seconds that a rank waits for another before it gives up with an error."""
    heartbeat_s: Seconds = 0.5
    """Seconds between two looks of the tasks at each other's ranks."""


class TrainConfig(Section):
    """One training run."""

    num_ranks: Positive = 2
    """Horovod ranks: one process, one Spark slot each."""
    epochs: Positive = 5
    batch_rows: Positive = 1024
    """Rows of one optimizer step over all ranks together: the global batch."""
    seed: Seed = 1
    """Seed of the initial weights and of the row order."""
    lanes: Positive | None = None
    """Virtual streams that the row order is cut into; fixed at a run's first start. Default: a multiple of num_ranks, at least 24."""
    precision: Literal["float32", "float64"] = "float32"
    optimizer: OptimizerConfig = OptimizerConfig()
    bucket_mb: Annotated[float, Field(gt=0)] = 25.0
    """Gradients travel in flat buckets of about this size, in megabytes."""
    checkpoint_steps: Positive = 200
    """Optimizer steps between two checkpoints; one is written at each epoch's end too."""
    keep_checkpoints: Positive = 3
    """How many of the latest checkpoints stay, beside the best one."""
    reader_threads: Positive = 1
    """Threads of a rank that read and decode row groups ahead."""
    memory_mb: Annotated[float, Field(gt=0)] = 1024.0
    """Memory of a rank for rows that are read and wait for their step; what exceeds it waits in files on local disk."""
    cache_mb: Annotated[float, Field(gt=0)] | None = None
    """Local disk for copies of a remote dataset's files, shared by the ranks of a host; null: each epoch reads the remote ones."""
    cache_folder: str | None = None
    """Where those copies lie, on each host; default: where temporary files go."""
    record_rows: bool = False
    """Write every row id of every step into the events (8 bytes a row; for audits of small runs)."""
    ring: RingConfig = RingConfig()

    @model_validator(mode="after")
    def _lanes_cover_the_ring(self) -> Self:
        if self.lanes is not None and self.lanes < self.num_ranks:
            raise ValueError(f"lanes={self.lanes} is less than num_ranks={self.num_ranks}: some ranks would never have a row")
        return self


class ScoreConfig(Section):
    """Batch predictions on Spark."""

    split: Literal["train", "validation", "test"] = "test"
    """Which split of the dataset version to score."""
    batch_rows: Positive = 8192
    """Rows of one forward pass."""


class SparkConfig(Section):
    """The Spark session that jobs make when none is running."""

    master: str | None = None
    """E.g. ``local[2]``, ``yarn``, ``spark://host:7077``; null leaves it to spark-submit or the notebook."""
    remote: str | None = None
    """A Spark Connect address, e.g. ``sc://host:15002``, instead of a master."""
    conf: dict[str, str] = {}
    """Spark properties, e.g. ``{spark.executor.memory: 4g}``."""

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, conf: object) -> object:
        """Spark takes texts; YAML may say ``true`` or ``4``."""
        if not isinstance(conf, dict):
            return conf
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in conf.items()}


class Config(Section):
    """All that one job needs. ``sparkring train NAME`` and the others read the parts that concern them."""

    name: str
    """Shown in Spark's page, the events and the report."""
    workspace: str
    """Folder or URL under which datasets, runs, scores and reports go."""
    dataset_url: str | None = None
    """The dataset; default ``<workspace>/dataset``."""
    dataset_version: Positive | None = None
    """The committed version to train on; default the latest."""
    spark: SparkConfig = SparkConfig()
    prepare: PrepareConfig
    model: ModelConfig = TabularModelConfig()
    train: TrainConfig = TrainConfig()
    score: ScoreConfig = ScoreConfig()

    @property
    def dataset(self) -> str:
        """URL of the dataset."""
        return self.dataset_url or f"{self.workspace}/dataset"

    @property
    def run(self) -> str:
        """URL of the training run: events, checkpoints and the trained model."""
        return f"{self.workspace}/run"

    @property
    def scores(self) -> str:
        """URL of the scored Parquet."""
        return f"{self.workspace}/scores"
