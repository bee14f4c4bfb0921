"""The columns that scoring adds to a row's id and label, by task. Pure; ``predict.py`` fills them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkring.conf.schema import Task
from sparkring.errors import ConfigError

PROBABILITY, MODEL, VERSION = "probability", "model", "dataset_version"
"""The probability of label 1 (or of the predicted class), the first 16 digits of the weights' SHA-256, and the dataset version that the
model was trained on."""
PREDICTION, PROBABILITIES = "prediction", "probabilities"
NATS, PREDICTED, RIGHT = "nats", "tokens_predicted", "tokens_right"
SPLIT = "split"
"""The column that names a scored row's split: readers of ``scores/`` see the folders of several scorings as one table. Evaluation has
no such column."""


def predicted_columns(task: Task) -> tuple[str, ...]:
    """The columns that a prediction adds."""
    match task:
        case "binary":
            return PROBABILITY, MODEL, VERSION
        case "multiclass":
            return PREDICTION, PROBABILITY, PROBABILITIES, MODEL, VERSION
        case "regression":
            return PREDICTION, MODEL, VERSION
        case "next_token":
            return NATS, PREDICTED, RIGHT, MODEL, VERSION


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
