"""Raw rows for a trained model to score: check their columns, then encode them as its train rows were."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.errors import SourceError, nearest
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.etl.columns.derive import check_moments
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.columns.roles import moments_of_model, role_of_row_id, roles_of_model
from sparkring.spark_jobs.etl.encoding.images import config_of, normalise_images
from sparkring.spark_jobs.etl.encoding.table_features import encode
from sparkring.spark_jobs.scoring.predict import source_columns


def encode_raw(frame: DataFrame, card: ModelCard, *, row_id: str, keep: Iterable[str] = ()) -> DataFrame:
    """Encode raw rows as the model's training rows were.

    Args:
        frame: The rows.
        card: The model's card.
        row_id: The column of row ids.
        keep: Other columns to pass through if the rows have them. All remaining columns are dropped.
    Raises:
        SourceError: a feature or the row id is missing, comes twice or has a type that prepare refuses for it (the row would be
            encoded differently than in training), or the rows are texts.
    """
    if card.task == "next_token":
        raise SourceError(f"the model {card.name} predicts tokens, and given texts are not cut into rows here; "
                          "prepare them as a dataset version and score a split of it.")
    features = source_columns(card)
    for name in (row_id, *features):
        if name not in frame.columns:
            raise SourceError(f"the rows to score have no column {name}{nearest(name, frame.columns)}; the model {card.name} needs "
                              f"{row_id} and its {len(features)} features, as the query of its config yields them.")
    wanted = [name for name in dict.fromkeys((row_id, *keep, *features)) if name in frame.columns]
    for name in wanted:
        alike = [other for other in frame.columns if other.lower() == name.lower()]
        if len(alike) > 1:
            raise SourceError(f"the rows to score have {len(alike)} columns {' and '.join(alike)}, which Spark does not tell apart; "
                              f"leave all but {name} out, or give them other names.")
    _check_types(frame, card, features, row_id=row_id)
    rows = frame.select([named(name).cast("bigint").alias(name) if name == row_id else named(name) for name in wanted])
    encoded = encode(rows, _seen_by(card))
    if card.model.kind != "image" or card.preprocessing.image is None:
        return encoded
    image = card.preprocessing.image.column
    problem = sf.raise_error(sf.concat(sf.lit(f"an image in column {image} cannot be used: "), sf.col("__problem")))
    normalised = normalise_images(encoded, config_of(card.preprocessing.image))
    return normalised.select(*(sf.coalesce(named(name), problem).alias(name) if name == image else named(name) for name in encoded.columns))


def _seen_by(card: ModelCard) -> Preprocessing:
    """The fitted features that a model uses: an image network uses no table column that was prepared beside the image."""
    fitted = card.preprocessing
    return fitted if card.model.kind == "tabular" else Preprocessing(numeric=(), categorical=(), train_rows=fitted.train_rows)


def _check_types(frame: DataFrame, card: ModelCard, features: list[str], *, row_id: str) -> None:
    types = {field.name: field.dataType for field in frame.schema}
    remedy = f"bring it as the query that {card.name} was trained on yields it"
    for role, name, kinds, expected in (role_of_row_id(row_id), *roles_of_model(card.preprocessing)):
        if name in (row_id, *features) and not isinstance(types[name], kinds):
            raise SourceError(f"column {name} of the rows to score is {types[name].simpleString()}, but {role} must be {expected}; "
                              f"{remedy}.")
    moments = [moment for moment in moments_of_model(card.preprocessing) if moment.column in features]
    check_moments(moments, types, rows="the rows to score", remedy=remedy)
