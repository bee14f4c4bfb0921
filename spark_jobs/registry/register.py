"""From a trained and evaluated run to a model version of the registry."""

from __future__ import annotations

import math
from typing import Any

from sparkring.errors import ConfigError
from sparkring.pipelines.data.stores.documents import read_document
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.evaluation.intervals import intervals
from sparkring.pipelines.training.job.model_files import CARD, load_card, load_weights, weights_name
from sparkring.spark_jobs.registry.documents import ModelVersion
from sparkring.spark_jobs.registry.registry import Registry, file_facts

EVALUATION = "evaluation.json"


def register_run(registry: Registry, run: str) -> ModelVersion:
    """Give the model of a run a number in the registry, or find the number that it has.

    Args:
        registry: The registry of the run's workspace.
        run: The run's name.
    Raises:
        ConfigError: the run has no trained model, or the model was not evaluated.
        CheckpointDamaged: card or weights are not what was committed.
        DocumentDamaged: the evaluation cannot be read.
    """
    run_url = registry.url_of(run)
    store, card = open_store(run_url), load_card(run_url)
    evaluation = _evaluation(run_url, card.weights_sha256)
    network = evaluation["network"]
    contents = {CARD: store.read(CARD), weights_name(card): load_weights(run_url, card), EVALUATION: store.read(EVALUATION)}
    return registry.register({
        "name": card.name, "task": card.task, "run": run, "dataset_url": card.dataset_url, "dataset_version": card.dataset_version,
        "content_id": card.content_id, "weights_sha256": card.weights_sha256, "code_version": card.code_version,
        "files": tuple(file_facts(content, name=name) for name, content in contents.items()),
        "split": evaluation["split"], "rows": network["rows"], "intervals": intervals(network),
        "metrics": {name: value for name, value in network.items() if isinstance(value, float) and math.isfinite(value)}})


def _evaluation(run_url: str, weights_sha256: str) -> dict[str, Any]:
    store = open_store(run_url)
    try:
        found = read_document(store, EVALUATION, keys=("weights_sha256", "split", "network"),
                              remedy="delete it and run `sparkring evaluate` again")
    except FileNotFoundError:
        found = {}
    if found.get("weights_sha256") != weights_sha256:
        raise ConfigError(f"the model in {run_url} was not evaluated, and a registered model says how good it is; run `sparkring evaluate` "
                          "with this config first.")
    return found
