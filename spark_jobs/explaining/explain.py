"""Slices and importance of a trained model, on the driver: of a table, from a sample of its held-out rows, within seconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.job.model_files import ModelCard, load_weights, model_from_bytes
from sparkring.spark_jobs.explaining.documents import LeftOut
from sparkring.spark_jobs.explaining.groups import groupings
from sparkring.spark_jobs.explaining.importance import permute_features
from sparkring.spark_jobs.explaining.network import Network
from sparkring.spark_jobs.explaining.sample import read_sample
from sparkring.spark_jobs.explaining.slices import LEAST_ROWS, find_slices

SLICES, IMPORTANCE = "slices", "importance"
"""The keys of ``evaluation.json``."""


def explain(run_url: str, card: ModelCard, manifest: Manifest, *, split: str, whole: bool, batch_rows: int) -> dict[str, Any]:
    """Compute slices and importance, or say why they are left out.

    Args:
        run_url: The folder of the model's run.
        card: The model.
        manifest: The dataset version that has the rows; the model can read them.
        split: The held-out split.
        whole: Whether a process holds the whole model; False for one that is cut into stages or shards.
        batch_rows: The most rows of a forward pass.
    Returns:
        ``slices`` and ``importance`` (``documents.py``), as JSON holds them.
    Raises:
        CheckpointDamaged: the weights are not what was committed.
        DatasetError: a page is damaged.
        StorageError: a file cannot be read.
    """
    reason = _reason(card, manifest.splits[split].rows, whole=whole)
    if reason is None:
        network = Network(model_from_bytes(card, load_weights(run_url, card)), card, batch_rows=batch_rows)
        rows = read_sample(open_store(card.dataset_url), manifest, split)
        judged = network.judge(rows)
        if np.isfinite(judged.losses).all():
            slices = find_slices(judged, rows.labels, list(groupings(card.preprocessing, rows)), task=card.task,
                                 split_rows=manifest.splits[split].rows)
            mixed = rows[np.random.default_rng(0).permutation(len(rows))]
            importance = permute_features(mixed, card.preprocessing, lambda some: network.judge(some).losses,
                                          multiplied=network.multiplied)
            return {SLICES: slices.model_dump(mode="json"), IMPORTANCE: importance.model_dump(mode="json")}
        reason = f"the network's loss is not finite for {int((~np.isfinite(judged.losses)).sum())} held-out rows"
    return {key: LeftOut(left_out=reason).model_dump(mode="json") for key in (SLICES, IMPORTANCE)}


def _reason(card: ModelCard, rows: int, *, whole: bool) -> str | None:
    """Why nothing is computed; None if it is."""
    if card.model.kind != "tabular":
        return f"they are of the columns of a table, and this model reads {'images' if card.model.kind == 'image' else 'texts'}"
    if not whole:
        return "the model is cut into stages or shards, and they are computed where a process holds all of it"
    if rows < 2 * LEAST_ROWS:
        return f"the split has {rows} rows, and they need at least {2 * LEAST_ROWS}"
    return None
