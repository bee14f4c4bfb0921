"""The columns that predictions and scores add to rows, by task. Pure; ``predict.py`` fills them.

    binary       prediction         int: 1 if the probability is at least 0.5, else 0
                 probability        double: of label 1
    multiclass   prediction         the likeliest class, of the type that the label has in the source
                 probability        double: of that class
                 probabilities      array<double>: of each class, in the order of the model's classes
                 top_k              if asked for, array<struct<class, probability>>: the k likeliest classes, the likeliest first
    next_token   nats               double: cross entropy, summed over the row's predicted tokens
                 tokens_predicted   int: number of these tokens
                 tokens_right       int: number of these for which the likeliest token was right
    masked_tokens: as next_token, of the row's masked tokens

Scores of a split have three more, which new rows have no use for: ``model``, ``dataset_version`` and ``split``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkring.conf.schema import PrepareConfig, Task
from sparkring.errors import ConfigError, SourceError

PREDICTION, PROBABILITY, PROBABILITIES, TOP_K = "prediction", "probability", "probabilities", "top_k"
NATS, PREDICTED, RIGHT = "nats", "tokens_predicted", "tokens_right"
MODEL, VERSION, SPLIT = "model", "dataset_version", "split"
"""The first 16 digits of the weights' SHA-256, and the version and the split of a row: readers of ``scores/`` see the folders of several
scorings as one table. Evaluation has no such columns."""
DECIDED_AT = 0.5
"""The least probability of label 1 at which it is predicted."""


def predicted_columns(task: Task, top_k: int | None = None) -> tuple[str, ...]:
    """The columns that a prediction adds.

    Raises:
        ConfigError: the task has no classes to choose ``top_k`` of.
    """
    if top_k is not None and task != "multiclass":
        raise ConfigError(f"score.top_k={top_k} asks for the likeliest of several classes, and this model's task is {task}; leave it out.")
    match task:
        case "binary":
            return PREDICTION, PROBABILITY
        case "multiclass":
            return PREDICTION, PROBABILITY, PROBABILITIES, *([TOP_K] if top_k else [])
        case "regression":
            return (PREDICTION,)
        case "next_token" | "masked_tokens":
            return NATS, PREDICTED, RIGHT


def telling_column(task: Task) -> str:
    """The column that is finite if the network's answer is."""
    return {"regression": PREDICTION, "next_token": NATS, "masked_tokens": NATS}.get(task, PROBABILITY)


def split_columns(task: Task, top_k: int | None = None) -> tuple[str, ...]:
    """The columns that scores of a split have beside the row id and the label."""
    return *predicted_columns(task, top_k), MODEL, VERSION, SPLIT


def require_free(names: Iterable[str], added: Sequence[str]) -> None:
    """Check that the columns that scores keep have other names than those added to them; Spark ignores capitals.

    Args:
        names: The row id and the label.
        added: The columns that are added.
    Raises:
        ConfigError: one has such a name.
    """
    for name in names:
        if name.lower() in added:
            raise ConfigError(f"the row id or the label is called {name}, and scores have another column of that name (they add "
                              f"{', '.join(added)}); give it another name in prepare.query (AS), or in the files that were adopted.")


def require_free_features(config: PrepareConfig) -> None:
    """Check that no feature has the name of a column that a prediction adds: its model could not score new rows, which hold both.

    Args:
        config: Its features have no wildcards.
    Raises:
        ConfigError: one has such a name.
    """
    features, added = config.features, predicted_columns(config.task)
    names = (*features.numbers, *features.categorical, *(moment.column for moment in features.moments),
             *(bucket.column for bucket in features.buckets), *(hashed.column for hashed in features.hashed),
             *([features.image.column] if features.image else []))
    for name in names:
        if name.lower() in added:
            raise ConfigError(f"prepare.features holds {name}, and a prediction adds another column of that name to new rows (it adds "
                              f"{', '.join(added)}); give the feature another name in prepare.query (AS).")


def require_free_in_rows(names: Iterable[str], added: Sequence[str]) -> None:
    """Check that rows have no column with the name of one that a prediction adds.

    Raises:
        SourceError: they have one.
    """
    for name in names:
        if name.lower() in added:
            raise SourceError(f"the rows have a column {name}, and a prediction adds another one of that name (it adds "
                              f"{', '.join(added)}); rename it, in the query with AS, in a frame with withColumnRenamed.")
