"""Exact metrics on held-out rows: each rank predicts its rows, rank 0 judges all of them together.

Nothing is averaged over ranks or batches: every row's prediction reaches rank 0 (8 bytes a row) before one is judged.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparkring.pipelines.data.loader import Loader
from sparkring.pipelines.parallel.communicator import Communicator
from sparkring.pipelines.training.step import Inputs


@torch.no_grad()  # not inference_mode: Horovod may not touch inference tensors from its own thread
def evaluate_split(model: nn.Module, loader: Loader, inputs: Inputs, communicator: Communicator) -> dict[str, float] | None:
    """Judge ``model`` on all rows of the loader's split.

    Returns:
        On rank 0 ``loss``, ``auc``, ``average_precision`` and ``calibration_error``; None on the others.
    """
    model.eval()
    parts: list[Tensor] = []
    for batch in loader.epoch(0):
        if batch.rows:
            probability = torch.sigmoid(model(**inputs.of(batch.tensors)).double())  # float32 would round a confident one to 1
            parts.append(torch.stack([probability, inputs.labels(batch.tensors).double()], dim=1).cpu())
    model.train()
    mine = torch.cat(parts) if parts else torch.empty((0, 2), dtype=torch.float64)
    everyone = communicator.gather(mine, name="held_out.predictions")
    if communicator.context.rank != 0:
        return None
    from sparkring.pipelines.training.metrics import binary_metrics  # scikit-learn takes seconds to load: only where it is used

    metrics = binary_metrics(everyone[:, 0].numpy(), everyone[:, 1].numpy())
    return {"loss": metrics.loss, "auc": metrics.auc, "average_precision": metrics.average_precision,
            "calibration_error": metrics.calibration_error}
