"""From the query to fitted examples: rows of a table, images, or texts cut into rows of tokens.

    table    query -> check ------------------------------> means, deviations, vocabularies, the label
    images   query -> decode, check, resize, encode ------> the same, and mean and deviation of each channel
    texts    query -> check -> join, cut into rows -------> how many tokens and bytes each split has
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sparkring.conf.schema import PrepareConfig
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.manifest import Manifest, RollingSplit
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.columns.labels import class_type, fit_classes, require_known_classes
from sparkring.spark_jobs.etl.columns.splits import SPLITS, split_name, train_sets
from sparkring.spark_jobs.etl.encoding.arrays import store_raw
from sparkring.spark_jobs.etl.encoding.images import check_new_images, normalise_images
from sparkring.spark_jobs.etl.encoding.tokens import SPLIT, TokenEncoding, fit_tokens, measure_documents, pack_documents, with_appended
from sparkring.spark_jobs.etl.examples import Query, check_examples, with_label
from sparkring.spark_jobs.etl.fit_sets import fit_sets
from sparkring.spark_jobs.etl.rolling import at_borders, roll, with_split_time
from sparkring.spark_jobs.etl.writing.document_list import TOKENIZER
from sparkring.spark_jobs.spark.errors import reason


@dataclass(frozen=True)
class Fitted:
    """Checked rows, and the preprocessing that was fitted on the train split."""

    examples: DataFrame
    """Rows of all splits; labels, numbers and texts as the query yields them, images, arrays and tokens as they are stored."""
    split: Column
    """The split of a row."""
    preprocessing: Preprocessing
    folds: tuple[Preprocessing, ...] = ()
    """Of a version in folds: what was fitted on the rows of all folds but each; then ``preprocessing`` suits all of them."""
    rolling: RollingSplit | None = None
    """The borders of a split by ages."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Further files of the dataset by name, e.g. a tokenizer."""
    documents: DataFrame | None = None
    """The texts that the rows were cut from; None for other rows."""
    known: DataFrame | None = None
    """The rows of the query that the version to append to holds; None if there are none."""


@contextmanager
def fitted_examples(query: Query, begin: Callable[[str], None]) -> Iterator[Fitted]:
    """Compute the query, check its rows and fit; the end of the block releases Spark's cached rows.

    Args:
        query: The query, in a session in which the sources are visible as tables.
        begin: Called with the name of each phase.
    Raises:
        ConfigError, SourceError: the query fails, or as ``check_examples`` and the fits raise them.
    """
    with _kept() as keep:
        with _query_errors():
            config, tokens = query.config, query.config.features.tokens
            fitted = (_cut_texts(query.rows, config, TokenEncoding.load(tokens), keep, begin) if tokens
                      else _fit_rows(query.rows, config, keep, begin))
        yield fitted


@contextmanager
def new_examples(query: Query, parent: Manifest, known: DataFrame, begin: Callable[[str], None]) -> Iterator[Fitted]:
    """The rows of the query that a dataset lacks, to be encoded with its preprocessing.

    Rows of tables are computed once and kept, also the known ones, which are compared later. Images and arrays are kept as they are
    stored, of new rows only.

    Args:
        query: The query, in a session in which the sources are visible as tables; for texts use ``new_texts``.
        parent: The version that they are to be appended to.
        known: One column: the row ids that the dataset holds.
        begin: Called with the name of each phase.
    Raises:
        ConfigError, SourceError: the query fails, as ``check_examples`` raises them, or a label is none of the fitted classes.
    """
    with _kept() as keep:
        begin("joining")
        with _query_errors():
            config, fitted = query.config, parent.preprocessing
            large = bool(config.features.image or config.features.raw)
            row_id = sf.col(known.columns[0])
            rows = query.rows.join(known, named(config.id_column).cast("bigint") == row_id, "left")
            rows = rows if large else keep(rows)
            again, new = (rows.where(chosen).drop(row_id) for chosen in (row_id.isNotNull(), row_id.isNull()))
            examples = keep(_stored(new, config)) if large else _stored(new, config)
            rolling = roll(config, examples, parent.rolling)
            config = at_borders(config, rolling)
            check_examples(examples, config, unlabelled=new.count, whole=False)
            if config.task == "multiclass":
                require_known_classes(examples, config.label, fitted.classes)
            if fitted.image is not None:
                check_new_images(examples, fitted.image, row_id=config.id_column)
            found = None if again.isEmpty() else again
        yield Fitted(with_split_time(examples, config, rolling), split_name(config), fitted, parent.folds, rolling, known=found)


@contextmanager
def new_texts(query: Query, parent: Preprocessing, encoding: TokenEncoding, choose: Callable[[DataFrame], DataFrame],
              begin: Callable[[str], None]) -> Iterator[Fitted]:
    """Rows cut from the documents of the query that a dataset lacks.

    Args:
        query: The query, in a session in which the sources are visible as tables.
        parent: The dataset's preprocessing.
        encoding: How its texts became tokens.
        choose: Keeps the new documents only.
        begin: Called with the name of each phase.
    Raises:
        ConfigError, SourceError: the query fails, or as ``measure_documents`` raises them.
    """
    with _kept() as keep:
        with _query_errors():
            fitted = _cut_texts(choose(query.rows), query.config, encoding, keep, begin, parent=parent)
        yield fitted


@contextmanager
def _kept() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """A function that has Spark keep a frame's rows once they are computed; the end of the block releases them."""
    with ExitStack() as frames:
        def keep(frame: DataFrame) -> DataFrame:
            frames.callback(frame.persist().unpersist)
            return frame

        yield keep


@contextmanager
def _query_errors() -> Iterator[None]:
    """Turn Spark's errors of the block, which plans, caches and first computes the query, into one line about the query.

    They are about a cast, a division or a function that a row does not allow, or a constant while the query is planned.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # the second: an exception for which PySpark has no class
        raise SourceError(f"prepare.query fails: {reason(error)}; correct the query or the source.") from None


def _fit_rows(result: DataFrame, config: PrepareConfig, keep: Callable[[DataFrame], DataFrame], begin: Callable[[str], None]) -> Fitted:
    begin("joining")
    examples = keep(_stored(result, config))
    rolling = roll(config, examples)
    config = at_borders(config, rolling)
    split = split_name(config)
    rows = check_examples(examples, config, unlabelled=result.count)
    begin("fitting on train")
    preprocessing, folds = fit_sets(examples, config, rows)
    if config.task == "multiclass":
        classes = fit_classes(examples, config.label, split=split, train_sets=train_sets(config))
        found = {"classes": classes, "class_type": class_type(examples, config.label)}
        preprocessing, *others = (each.model_copy(update=found) for each in (preprocessing, *folds))
        folds = tuple(others)
    return Fitted(with_split_time(examples, config, rolling), split, preprocessing, folds, rolling)


def _stored(result: DataFrame, config: PrepareConfig) -> DataFrame:
    """The rows that have a label, with arrays and images as the dataset stores them."""
    examples, features = with_label(result, config), config.features
    examples = store_raw(examples, features) if features.raw else examples
    return normalise_images(examples, features.image) if features.image else examples


def _cut_texts(documents: DataFrame, config: PrepareConfig, encoding: TokenEncoding, keep: Callable[[DataFrame], DataFrame],
               begin: Callable[[str], None], *, parent: Preprocessing | None = None) -> Fitted:
    """Rows of all documents, or of those appended to a parent; the counts then cover both."""
    assert config.features.tokens is not None
    begin("joining")
    sizes = measure_documents(keep(documents), config, whole=parent is None)
    begin("cutting into tokens")
    before = parent.tokens if parent else None
    packed = keep(pack_documents(documents, config, encoding, sizes=sizes, first_pack=before.packs if before else 0))
    tokens, rows = fit_tokens(packed, config, encoding, sizes=sizes)
    fitted = Preprocessing(numeric=(), categorical=(), train_rows=rows.get(SPLITS[0], 0) + (parent.train_rows if parent else 0),
                           tokens=with_appended(before, tokens) if before else tokens)
    files = {TOKENIZER: encoding.tokenizer.encode()} if encoding.tokenizer else {}
    return Fitted(packed, sf.col(SPLIT), fitted, files=files, documents=documents)
