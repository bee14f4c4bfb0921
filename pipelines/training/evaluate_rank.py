"""Evaluating a trained model by its stages: no rank holds, and none builds, the whole of it."""

from __future__ import annotations

from typing import Any

from safetensors.torch import load

from sparkring.models.build import list_blocks
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.evaluation.evaluate import evaluate_fully
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.model_files import load_card, load_weights
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.pipelines.training.rows import RankRows
from sparkring.pipelines.training.start_check import require_committed_files
from sparkring.pipelines.training.strategies.stages import Stages


def evaluate_rank(context: RankContext, job: dict[str, Any], split: str) -> dict[str, Any] | None:
    """Evaluate the model of a run on one rank; what the ring launcher starts.

    Args:
        context: This rank's place.
        job: A ``TrainJob`` whose config cuts the model, with the network of the run's card.
        split: The split whose rows are predicted.
    Returns:
        On rank 0 what ``evaluate_fully`` says, None on the others.
    """
    parsed = TrainJob.model_validate(job)
    layout, config = parsed.layout(), parsed.config
    assert layout is not None, "a model that is not cut is evaluated without a ring"
    with Communicator(context, extra_sets=layout.process_sets(context.hosts), hops=layout.transport == "horovod") as communicator:
        rows = RankRows(parsed, layout, context)
        require_committed_files(communicator, rows.dataset, rows.manifest, splits=(split,))
        blocks = list_blocks(config.model, shapes_of(rows.manifest.task, rows.manifest.preprocessing))
        stages = Stages(blocks, layout, communicator, rows.manifest, inputs=rows.inputs(), train=config.train)
        stages.load(load(load_weights(parsed.run_url, load_card(parsed.run_url))))
        evaluated = evaluate_fully(stages.predict(rows.loader(split)), communicator, rows.manifest, split=split)
        stages.close()
    return evaluated
