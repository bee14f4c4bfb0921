"""The rows of the files that a version adds, by split: new examples, and those of the parent that fall anew (``etl/rolling.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.manifest import RollingSplit
from sparkring.pipelines.data.dataset.row_schema import DataField
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.columns.labels import number_classes
from sparkring.spark_jobs.etl.columns.splits import SPLITS
from sparkring.spark_jobs.etl.encoding.petastorm_schema import stored_type
from sparkring.spark_jobs.etl.encoding.table_features import encode
from sparkring.spark_jobs.etl.fitted import Fitted

FALLS_IN = "__falls_in"
"""The column of a parent's row that says in which split it falls now."""


class EncodedRows:
    """New examples, encoded as they are read, and rows that are encoded already."""

    def __init__(self, fitted: Fitted, fields: Sequence[DataField], again: DataFrame | None) -> None:
        """Plan; nothing is computed.

        Args:
            fitted: The new examples.
            fields: The columns of the files, the row id first, the label second.
            again: Encoded rows with their split in the column ``FALLS_IN``; None if there are none.
        """
        self._fitted, self._again, self._label = fitted, again, fields[1].name
        self._columns = [named(field.name).cast(stored_type(field)).alias(field.name) for field in fields]
        row_id = named(fields[0].name).cast("bigint").alias(fields[0].name)
        self.counted, self.split = fitted.examples, fitted.split
        """Row ids of all rows, and the split of each: cheap to count."""
        if again is not None:
            self.counted = fitted.examples.select(row_id, fitted.split.alias(FALLS_IN)).unionByName(again.select(row_id, FALLS_IN))
            self.split = sf.col(FALLS_IN)

    def of(self, split: str) -> DataFrame:
        """The rows of one split."""
        fitted = self._fitted
        examples, classes = fitted.examples.where(fitted.split == split), fitted.preprocessing.classes
        examples = number_classes(examples, self._label, classes) if classes else examples
        new = encode(examples, fitted.preprocessing, in_folds=bool(fitted.folds))
        if self._again is None:
            return new
        return new.select(self._columns).unionByName(self._again.where(sf.col(FALLS_IN) == split).select(self._columns))


def require_held_out(splits: Iterable[str], rolling: RollingSplit) -> None:
    """Check that no split of a version whose borders moved is empty.

    Raises:
        SourceError: one is.
    """
    missing = [name for name in SPLITS if name not in {*splits, SPLITS[0]}]
    if missing:
        newest, *borders = (moment.isoformat() for moment in (rolling.newest, rolling.validation_from, rolling.test_from))
        raise SourceError(f"the {missing[0]} split is empty: the newest row is of {newest}, so validation begins at {borders[0]} and test "
                          f"at {borders[1]}; set longer ages (prepare.split), or append when more rows are there.")
