"""Losses summed over rows, in float32 or wider, each row times its weight if rows have weights.

The training step makes the mean of the whole step of them.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from sparkring.conf.schema import RegressionLoss, Task
from sparkring.errors import ConfigError


def log_loss_sum(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum over rows of the binary cross entropy, in nats.

    Args:
        logits: (rows,) log odds of label 1.
        labels: (rows,) 0 or 1, of the logits' type or wider.
        weights: (rows,) floats; None: each row counts once.
    Returns:
        A scalar; 0 for no rows.
    """
    return functional.binary_cross_entropy_with_logits(widened(logits), labels, weight=weights, reduction="sum")


def cross_entropy_sum(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum over rows of the cross entropy of the row's class, in nats.

    Args:
        logits: (rows, classes).
        labels: (rows,) int64 numbers of classes.
        weights: (rows,) floats; None: each row counts once.
    Returns:
        A scalar; 0 for no rows.
    """
    if weights is None:
        return functional.cross_entropy(widened(logits), labels, reduction="sum")
    return (functional.cross_entropy(widened(logits), labels, reduction="none") * weights).sum()


def error_sum(predictions: Tensor, labels: Tensor, weights: Tensor | None = None, *, loss: RegressionLoss, huber_delta: float) -> Tensor:
    """Sum over rows of the loss of a predicted number. With e the difference of prediction and label:

        squared     e^2
        absolute    |e|
        huber       e^2 / 2 up to |e| = delta, then delta (|e| - delta / 2)

    Args:
        predictions: (rows,) standardised as the labels.
        labels: (rows,) standardised, of the predictions' type or wider.
        weights: (rows,) floats; None: each row counts once.
        loss: Which of them.
        huber_delta: The delta of ``huber``.
    Returns:
        A scalar; 0 for no rows.
    Raises:
        ConfigError: predictions have another shape, so torch would compare each with every label.
    Source: Huber, "Robust Estimation of a Location Parameter", Annals of Mathematical Statistics 35 (1964).
    """
    if predictions.shape != labels.shape:
        raise ConfigError(f"the network gives outputs of shape {tuple(predictions.shape)} for {len(labels)} rows, and regression takes one "
                          "number a row; return (rows,) or (rows, 1) from model.network.")
    if loss == "squared":
        losses = functional.mse_loss(widened(predictions), labels, reduction="none")
    elif loss == "absolute":
        losses = functional.l1_loss(widened(predictions), labels, reduction="none")
    else:
        losses = functional.huber_loss(widened(predictions), labels, reduction="none", delta=huber_delta)
    return losses.sum() if weights is None else (losses * weights).sum()


def next_token_loss_sum(logits: Tensor, tokens: Tensor, *, pad_id: int) -> Tensor:
    """Sum over rows of the mean cross entropy of each row's tokens given those before them, in nats.

    The first token of a row has nothing before it and is not predicted; padding is neither predicted nor counted.

    Args:
        logits: (rows, length, vocabulary); position t predicts token t + 1.
        tokens: (rows, length) int64.
        pad_id: The id that fills rows up.
    Returns:
        A scalar; 0 for no rows, and a row without a second token adds 0.
    """
    return mean_over_tokens(*next_token_nats(logits, tokens, pad_id=pad_id))


def masked_token_loss_sum(logits: Tensor, targets: Tensor, *, pad_id: int) -> Tensor:
    """Sum over rows of the mean cross entropy of each row's masked tokens, in nats.

    Args:
        logits: (rows, length, vocabulary).
        targets: (rows, length) int64: the token at each masked position, ``pad_id`` elsewhere.
        pad_id: Marks what is not to be found.
    Returns:
        A scalar; 0 for no rows, and a row without masked tokens adds 0.
    """
    return mean_over_tokens(*token_nats(logits, targets, pad_id=pad_id))


def next_token_nats(logits: Tensor, tokens: Tensor, *, pad_id: int) -> tuple[Tensor, Tensor]:
    """The cross entropy of every predicted token.

    Returns:
        (rows, length) nats of the token after each position, and (rows, length) whether that token is predicted. It is
        not at the end of a row and before padding; there the nats are 0.
    """
    return token_nats(logits, next_tokens(tokens, pad_id=pad_id), pad_id=pad_id)


def token_nats(logits: Tensor, targets: Tensor, *, pad_id: int) -> tuple[Tensor, Tensor]:
    """The cross entropy of each target (rows, length), 0 where that is ``pad_id``; and whether it is another one."""
    nats = functional.cross_entropy(widened(logits).flatten(0, 1), targets.flatten(), ignore_index=pad_id, reduction="none")
    return nats.view_as(targets), targets != pad_id


def token_hits(logits: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """(rows, length) whether the likeliest token is the target; ``counted`` is what ``token_nats`` returns."""
    return (logits.argmax(dim=2) == targets) & counted


def targets_of(task: Task, labels: Tensor, *, pad_id: int) -> Tensor:
    """(rows, length) the token to predict at each position, ``pad_id`` where there is none.

    Args:
        task: ``next_token``, whose labels are the tokens, or ``masked_tokens``, whose labels are the targets.
        labels: (rows, length).
        pad_id: The id that fills rows up.
    """
    return next_tokens(labels, pad_id=pad_id) if task == "next_token" else labels


def widened(logits: Tensor) -> Tensor:
    """The logits as float32 where their type has fewer bits."""
    return logits.float() if logits.dtype.itemsize < 4 else logits


def next_tokens(tokens: Tensor, *, pad_id: int) -> Tensor:
    """(rows, length) the token after each position; ``pad_id`` at the last position."""
    return functional.pad(tokens[:, 1:], (0, 1), value=pad_id)


def mean_over_tokens(nats: Tensor, counted: Tensor) -> Tensor:
    """Sum over rows of the mean of a row's counted nats; the other nats must be 0."""
    return (nats.sum(dim=1) / counted.sum(dim=1).clamp(min=1)).sum()
