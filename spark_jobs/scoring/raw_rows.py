"""Raw rows for a trained model to score: what is checked of their columns before anything is computed."""

from __future__ import annotations

from pyspark.sql import DataFrame

from sparkring.conf.schema import TEXT_TASKS
from sparkring.errors import SourceError, nearest
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.etl.columns.derive import check_moments
from sparkring.spark_jobs.etl.columns.roles import moments_of_model, roles_of_model


def check_raw(frame: DataFrame, card: ModelCard) -> None:
    """Check that raw rows can be encoded as the model's train rows were.

    Raises:
        SourceError: a feature is missing, comes twice or has a type that prepare refuses for it (the row would be encoded differently
            than in training), or the rows are texts.
    """
    if card.task in TEXT_TASKS:
        raise SourceError(f"the model {card.name} predicts tokens, and given texts are not cut into rows here; "
                          "prepare them as a dataset version and score a split of it.")
    features = source_columns(card)
    for name in features:
        if name not in frame.columns:
            raise SourceError(f"the rows to score have no column {name}{nearest(name, frame.columns)}; the model {card.name} needs "
                              f"its {len(features)} features, as the query of its config yields them.")
        alike = [other for other in frame.columns if other.lower() == name.lower()]
        if len(alike) > 1:
            raise SourceError(f"the rows to score have {len(alike)} columns {' and '.join(alike)}, which Spark does not tell apart; "
                              f"leave all but {name} out, or give them other names.")
    _check_types(frame, card, features)


def source_columns(card: ModelCard) -> list[str]:
    """The columns of raw rows that a model's features are made of. An image network uses no table column beside its image."""
    features = card.preprocessing
    if card.model.kind == "image" and features.image:
        return [features.image.column]
    return list(dict.fromkeys(feature.source for feature in (*features.numeric, *features.with_ids)))


def _check_types(frame: DataFrame, card: ModelCard, features: list[str]) -> None:
    types = {field.name: field.dataType for field in frame.schema}
    remedy = f"bring it as the query that {card.name} was trained on yields it"
    for role, name, kinds, expected in roles_of_model(card.preprocessing):
        if name in features and not isinstance(types[name], kinds):
            raise SourceError(f"column {name} of the rows to score is {types[name].simpleString()}, but {role} must be {expected}; "
                              f"{remedy}.")
    moments = [moment for moment in moments_of_model(card.preprocessing) if moment.column in features]
    check_moments(moments, types, rows="the rows to score", remedy=remedy)
