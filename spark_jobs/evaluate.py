"""Evaluate the trained network on the test split, beside baselines on the same rows.

    binary       the base rate and logistic regression; AUC, calibration and more: metrics.py
    multiclass   the base rate; loss, accuracy, confusion: scoring/class_metrics.py
    regression   the mean of train labels and ridge regression; R2, errors and more: evaluation/regression.py
    next_token   the base rate; loss, accuracy, bits a byte: scoring/class_metrics.py; so of masked_tokens, without bits a byte

    sparkring evaluate local/flights

A ring of ranks evaluates a model that ``train.parallel`` or the planner cuts into stages or shards; Spark tasks evaluate any other
model, each holding the whole of it. Metrics are exact. For the binary task every test row's probability and label come to the
driver (16 bytes a row). Beside the metrics stand the groups of rows on which the model is worse than on the rest, and the importance
of its features, from a sample of test rows (``explaining/``). The result is ``<run>/evaluation.json``, for another
``dataset_version`` than the model was trained on ``<run>/evaluation-version-N.json``; the same model on the same data is not
evaluated twice. ``measure`` computes the network's metrics alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import TEXT_TASKS, Config
from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.row_schema import Standardisation
from sparkring.pipelines.data.order.row_order import default_lanes
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.documents import read_document
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.evaluation.metrics import binary_metrics
from sparkring.pipelines.training.evaluation.totals import Metrics
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.model_files import ModelCard, load_card
from sparkring.spark_jobs.auto_layout import with_planned_layout
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.sources.committed_files import naming_damaged_pages
from sparkring.spark_jobs.explaining.explain import explain
from sparkring.spark_jobs.run.place import with_existing_run
from sparkring.spark_jobs.scoring.baselines import logistic_regression, ridge_regression
from sparkring.spark_jobs.scoring.class_metrics import class_base_rate, evaluate_classes, evaluate_tokens, token_base_rate
from sparkring.spark_jobs.scoring.columns import PROBABILITY
from sparkring.spark_jobs.scoring.number_metrics import evaluate_numbers, mean_of_train
from sparkring.spark_jobs.scoring.predict import Model
from sparkring.spark_jobs.scoring.predict_split import predict_split
from sparkring.spark_jobs.scoring.split_rows import SplitRows, split_of, trained_on, version_for
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.spark.session import result_settings, spark_session
from sparkring.spark_jobs.spark.versions.arrow_frames import table_of
from sparkring.spark_jobs.tracking.following import tracked

DOCUMENT = "evaluation.json"
SPLIT = "test"


def evaluate(config: ConfigLike, *, fitted_baselines: bool = True, spark: SparkSession | None = None, progress: Progress = SILENT,
             **keys: Any) -> dict[str, Any]:
    """Evaluate the model of the run of ``config``, or return the earlier evaluation of it.

    Args:
        config: What ``load_config`` takes; names the run (see ``run/place.py``), and the ``dataset_version`` (default: the one that the
            model was trained on).
        fitted_baselines: Whether to fit a baseline to the train rows (logistic or ridge regression), which takes passes over all of them.
            An earlier evaluation is reused with the baselines that it has.
        spark: The session to use; default the active one, or one made from ``config.spark`` when it is needed.
        progress: Where to report.
        keys: Keys of the config that replace those of ``config``, e.g. ``workspace="runs/x"``.
    Returns:
        ``task``, ``split``, ``dataset_version``, ``content_id``, ``weights_sha256``; and under ``network``, ``base_rate`` and (for a
        binary task on a table) ``logistic_regression`` the metrics of ``metrics.BinaryMetrics`` or ``scoring/class_metrics.py``. For
        a regression those of ``RegressionMetrics``, under ``network``, ``mean`` and (on a table) ``ridge``. Under ``slices`` and
        ``importance`` what ``explaining/documents.py`` describes; an evaluation of an earlier release lacks them.
    Raises:
        ConfigError: the run has no trained model, or the label has the name of a predicted column.
        DatasetError: the dataset version is not the one that the model was trained on, one of its files differs from the committed
            one, or its test rows have one label only.
        NotFinite: the network's answer for a row is not finite.
        DocumentDamaged: ``evaluation.json`` exists and cannot be read.
        EnvironmentProblem, StorageError: Spark cannot read the dataset.
    """
    config = with_existing_run(config_of_job(evaluate, config, keys), progress=progress)
    with tracked(config, progress=progress):
        return _evaluate(config, spark, progress, fitted_baselines=fitted_baselines)


def measure(config: ConfigLike, *, spark: SparkSession | None = None, progress: Progress = SILENT, **keys: Any) -> Metrics:
    """Measure the model of the run of ``config``: the network's metrics alone, without what takes a job of its own beside it.

    They are those of an earlier evaluation, if there is one, and are not kept. Arguments and errors are those of ``evaluate``.
    """
    job = _Evaluation.of(with_existing_run(config_of_job(measure, config, keys), progress=progress))
    before = job.earlier()
    if before is not None:
        found: Metrics = before["network"]
        return found
    session = spark_session(job.config.spark, app_name=f"sparkring {job.config.name}", given=spark)
    with progress.stage("measure", total=1), job.reading(session, SPLIT) as rows:
        return job.network(rows[SPLIT], session)


def _evaluate(config: Config, spark: SparkSession | None, progress: Progress, *, fitted_baselines: bool) -> dict[str, Any]:
    job = _Evaluation.of(config)
    before = job.earlier()
    if before is not None:
        progress.note(f"evaluate: this model was evaluated on these rows already; reusing {job.store.url}/{job.document_name}")
        return before
    session = spark_session(config.spark, app_name=f"sparkring {config.name}", given=spark)
    with progress.stage("evaluate", total=3) as bar, job.reading(session, "train", SPLIT) as rows:
        bar.update(0, text="network")
        train, test = rows["train"].read(session), rows[SPLIT].read(session)  # first: where Spark cannot read them, nothing is run
        network = job.network(rows[SPLIT], session)
        bar.update(1, text="baselines")
        models = {"network": network, **_baselines(network, train, test, job.trained, fitted=fitted_baselines)}
        bar.update(2, text="slices and importance")
        explained = explain(config.run_url, job.card, job.manifest, split=SPLIT, whole=not job.laid.train.parallel.cuts_the_model,
                            batch_rows=config.score.batch_rows)
    document = job.identity | models | explained
    job.store.put(job.document_name, json.dumps(document, indent=1).encode())
    return document


@dataclass(frozen=True)
class _Evaluation:
    """A model, and the dataset version that it is evaluated on."""

    config: Config
    store: Store
    """The run's."""
    card: ModelCard
    trained: Manifest
    """The version that the model was trained on."""
    manifest: Manifest
    laid: Config
    """The config with the layout of stages and shards that was planned for the run."""

    @classmethod
    def of(cls, config: Config) -> _Evaluation:
        """Look up the model and the version; raises as ``evaluate``."""
        card, store = load_card(config.run_url), open_store(config.run_url)
        made = cls(config, store, card, trained_on(card), version_for(card, config.dataset_version), with_planned_layout(config, store))
        require_both_labels({"train": made.trained, SPLIT: made.manifest}, card.dataset_url)
        return made

    @property
    def document_name(self) -> str:
        """Of the evaluation in the run's folder."""
        version = self.manifest.version
        return DOCUMENT if version == self.trained.version else f"evaluation-version-{version}.json"

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two evaluations the same."""
        return {"task": self.card.task, "split": SPLIT, "dataset_version": self.manifest.version, "content_id": self.manifest.content_id,
                "weights_sha256": self.card.weights_sha256}

    def earlier(self) -> dict[str, Any] | None:
        """The evaluation of this model on these rows, if there is one."""
        before = _evaluated(self.store, self.document_name)
        return before if before is not None and self.identity.items() <= before.items() else None

    @contextmanager
    def reading(self, session: SparkSession, *splits: str) -> Iterator[dict[str, SplitRows]]:
        """The rows of splits, of which train's are those that the model was trained on."""
        url = self.card.dataset_url
        of = {name: self.trained if name == "train" else self.manifest for name in splits}
        files = [file for name, manifest in of.items() for file in split_of(manifest, url, name).files]
        with result_settings(session), naming_damaged_pages(open_store(url), files):
            yield {name: SplitRows.of(manifest, url, name) for name, manifest in of.items()}

    def network(self, test: SplitRows, session: SparkSession) -> Metrics:
        """The network's metrics on these rows."""
        if self.laid.train.parallel.cuts_the_model:
            return _evaluate_by_stages(self.laid, self.card, self.manifest, session)
        return _evaluate_by_tasks(self.config, test, self.manifest, session)


def _evaluate_by_tasks(config: Config, test: SplitRows, manifest: Manifest, session: SparkSession) -> Metrics:
    """The network's evaluation, predicted by Spark's tasks."""
    keep = [] if manifest.task in TEXT_TASKS else [manifest.label]
    predicted = predict_split(session, test, Model.of(config.run_url), keep=keep, batch_rows=config.score.batch_rows)
    if manifest.task == "multiclass":
        return evaluate_classes(predicted, label=manifest.label, classes=manifest.preprocessing.classes)
    if manifest.preprocessing.label is not None:
        return evaluate_numbers(predicted, label=manifest.label, fitted=manifest.preprocessing.label)
    if manifest.task in TEXT_TASKS:
        assert manifest.preprocessing.tokens is not None
        return evaluate_tokens(predicted, tokens=manifest.preprocessing.tokens, split=SPLIT)
    return binary_metrics(*_collect(predicted, manifest.label)).model_dump(mode="json")


def _evaluate_by_stages(config: Config, card: ModelCard, manifest: Manifest, session: SparkSession) -> Metrics:
    """The network's evaluation, predicted by a ring of its stages in the precision that it is kept in."""
    from sparkring.models.build import without_dropout
    from sparkring.pipelines.training.evaluate_rank import evaluate_rank  # imports torch and horovod
    from sparkring.spark_jobs.ring import run_ring

    config = config.fitted_to(manifest.splits["train"].rows)
    train = config.train.changed(precision="float32") if config.train.precision == "bf16" else config.train
    config = config.model_copy(update={"model": without_dropout(card.model), "train": train, "fold": card.fold})
    job = TrainJob(config=config, dataset_url=card.dataset_url, dataset_version=manifest.version, run_url=config.run_url, generation=0,
                   lanes=default_lanes(train.num_micro_batches))
    evaluated: Metrics = run_ring(evaluate_rank, job.model_dump(mode="json"), SPLIT, num_ranks=train.num_ranks, spark=session,
                                 config=train.ring)[0]
    return evaluated


def _baselines(network: Metrics, train: DataFrame, test: DataFrame, manifest: Manifest, *, fitted: bool) -> dict[str, Metrics]:
    """The base rate, or for a regression the mean; and with ``fitted``, on a table, a logistic or ridge regression.

    ``manifest`` is the train rows'.
    """
    fitted = fitted and _has_table(manifest)
    if manifest.task == "multiclass":
        return {"base_rate": class_base_rate(train, network, label=manifest.label)}
    if manifest.task in TEXT_TASKS:
        assert manifest.preprocessing.tokens is not None
        return {"base_rate": token_base_rate(train, test, tokens=manifest.preprocessing.tokens, split=SPLIT)}
    if manifest.preprocessing.label is not None:
        return _regression_baselines(train, test, manifest, manifest.preprocessing.label, ridge=fitted)
    share = (manifest.splits["train"].positives or 0) / manifest.splits["train"].rows
    labels = np.repeat([0.0, 1.0], [network["rows"] - network["positives"], network["positives"]])
    found = {"base_rate": binary_metrics(np.full(labels.shape, share), labels)}
    if fitted:
        regression = logistic_regression(train, test, manifest.preprocessing, label=manifest.label)
        found["logistic_regression"] = binary_metrics(*_collect(regression, "label"))
    return {name: metrics.model_dump(mode="json") for name, metrics in found.items()}


def _regression_baselines(train: DataFrame, test: DataFrame, manifest: Manifest, scale: Standardisation, *,
                          ridge: bool) -> dict[str, Metrics]:
    predicted = {"mean": mean_of_train(train, test, label=manifest.label, fitted=scale)}
    if ridge:
        predicted["ridge"] = ridge_regression(train, test, manifest.preprocessing, label=manifest.label, fitted=scale)
    return {name: evaluate_numbers(rows, label=manifest.label, fitted=scale) for name, rows in predicted.items()}


def _has_table(manifest: Manifest) -> bool:
    return bool(manifest.preprocessing.numeric or manifest.preprocessing.with_ids)


def _collect(predicted: DataFrame, label: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probabilities and labels of all rows, in the same order."""
    table = table_of(predicted.select(sf.col(PROBABILITY), named(label).cast("double").alias("label")))
    return table[PROBABILITY].to_numpy(), table["label"].to_numpy()


def require_both_labels(manifests: dict[str, Manifest], dataset_url: str) -> None:
    """Check that these splits, each of its version, are there, and of a binary task have rows of either label.

    Raises:
        DatasetError: one has not.
    """
    for name, manifest in manifests.items():
        split = split_of(manifest, dataset_url, name)
        if manifest.task == "binary" and split.positives in (0, split.rows):
            raise DatasetError(f"all {split.rows} rows of the {name} split of version {manifest.version} of {dataset_url} have label "
                               f"{min(split.positives, 1)}, so every model would score the same; change prepare.split and prepare again.")


def _evaluated(store: Store, name: str) -> dict[str, Any] | None:
    try:
        return read_document(store, name, keys=("weights_sha256", "network"),
                             remedy="delete it and run `sparkring evaluate` again")
    except FileNotFoundError:
        return None
