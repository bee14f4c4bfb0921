"""Evaluating a trained model in stages: no rank builds or holds the whole model."""

from __future__ import annotations

from typing import Any

from safetensors.torch import load

from sparkring.models.build import list_blocks
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.evaluation.evaluate import evaluate_fully
from sparkring.pipelines.training.job.job import TrainJob, layout_of
from sparkring.pipelines.training.job.model_files import load_card, load_weights
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.pipelines.training.rows import RankRows
from sparkring.pipelines.training.start_check import require_committed_files
from sparkring.pipelines.training.strategies.stages import Stages


def evaluate_rank(context: RankContext, job: dict[str, Any], split: str) -> dict[str, Any] | None:
    """Evaluate the model of a run on one rank; the ring launcher starts it.

    Args:
        context: This rank's place.
        job: A ``TrainJob`` whose config cuts the model into stages, with the network of the run's card.
        split: The split whose rows are predicted.
    Returns:
        The result of ``evaluate_fully`` on rank 0, None on the others.
    """
    parsed = TrainJob.model_validate(job)
    config = parsed.config
    version = Dataset(parsed.dataset_url).open(parsed.dataset_version, fold=config.fold)
    layout, manifest = layout_of(config, version.manifest), version.manifest
    assert layout is not None, "a model that is not cut is evaluated without a ring"
    sets = layout.process_sets(context.hosts)
    with Communicator(context, extra_sets=sets, messages_by_horovod=layout.messages_by_horovod) as communicator:
        rows = RankRows(parsed, version, layout, context)
        require_committed_files(communicator, version, splits=(split,))
        blocks = list_blocks(config.model, shapes_of(manifest.task, manifest.preprocessing))
        stages = Stages(blocks, layout, communicator, manifest, inputs=rows.inputs(), train=config.train)
        stages.load(load(load_weights(parsed.run_url, load_card(parsed.run_url))))
        evaluated = evaluate_fully(stages.predict(rows.loader(split)), communicator, manifest, split=split)
        stages.close()
    return evaluated
