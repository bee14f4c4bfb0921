"""One rank of the check: ``python -m benchmarks.gpu_check.rank ORDER.json``, started by ranks.py.

    train        a whole run of the product's ``train_rank``
    gradients    the first step's loss and gradient of several networks, without a ring
    profile      the planner's measurements of a network
    allreduce    sums of a ring, on the device
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from safetensors.torch import save_file
from torch import Tensor

from harness.process_memory import peak_rss_mb
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.tasks import loss_of, shapes_of
from sparkring.pipelines.training.profiling.profile import profile_rank
from sparkring.pipelines.training.rows import RankRows
from sparkring.pipelines.training.train_rank import train_rank

SUMMED_MB = 25
ROUNDS = 20
MB = 1 << 20


def main() -> None:
    """Do the order's work and leave the answer."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    context = RankContext(**order["context"] | {"hosts": tuple(order["context"]["hosts"])})
    answer = WORK[order["work"]](context, order["arguments"])
    Path(order["answer"]).write_text(json.dumps(answer | _memory(context.device)), encoding="utf-8")


def train(context: RankContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Train ``job``."""
    summary = train_rank(context, arguments["job"])
    return {"steps": summary["steps"] if summary else None}


def gradients(context: RankContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The first step of each of ``jobs``, by name: its loss; its gradient and the initial weights in ``folder``/<name>.safetensors."""
    losses, errors = {}, {}
    for name, document in arguments["jobs"].items():
        try:
            losses[name], tensors = _first_step(context, TrainJob.model_validate(document))
        except Exception:  # noqa: BLE001 - the other networks may still tell something
            errors[name] = traceback.format_exc()
            continue
        save_file(tensors, Path(arguments["folder"]) / f"{name}.safetensors")
    return {"losses": losses, "errors": errors}


def profile(context: RankContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the network of ``job`` as ``train.parallel: auto`` does."""
    job = TrainJob.model_validate(arguments["job"])
    return {"profile": profile_rank(context, job.config.model_dump(mode="json"), job.dataset_url, job.dataset_version)}


def allreduce(context: RankContext, _: Mapping[str, Any]) -> dict[str, Any]:
    """Sum 25 MB over the ring, in place and several times: whether the sum is right, and the seconds of one."""
    with Communicator(context):
        found = {}
        for dtype in (torch.float32, torch.float64):
            values = torch.arange(SUMMED_MB * MB // dtype.itemsize, device=context.device).remainder(1000).to(dtype)
            summed = hvd.allreduce(values, name=f"check.{dtype}", op=hvd.Sum)
            kept, began = values.clone(), time.perf_counter()
            for _round in range(ROUNDS):
                hvd.allreduce_(kept, name=f"timed.{dtype}", op=hvd.Sum)
            if values.is_cuda:
                torch.cuda.synchronize()
            found[str(dtype).removeprefix("torch.")] = {"right": torch.equal(summed, values * context.size),
                                                        "seconds": (time.perf_counter() - began) / ROUNDS}
        return {"sums": found, "nccl_built": bool(hvd.nccl_built())}


def _first_step(context: RankContext, job: TrainJob) -> tuple[float, dict[str, Tensor]]:
    version = Dataset(job.dataset_url).open(job.dataset_version)
    task, features = version.manifest.task, version.manifest.preprocessing
    rows = RankRows(job, version, None, context)
    inputs = rows.inputs()
    torch.manual_seed(job.config.train.seed)
    model = build_model(job.config.model, shapes_of(task, features))
    start = {f"start/{name}": tensor.detach().clone() for name, tensor in model.state_dict().items()}
    inputs.place(model)
    with closing(rows.loader("train").epoch(0)) as batches:
        batch = next(batches)
        predictions = model(**inputs.of(batch.tensors, epoch=batch.epoch))
        loss = loss_of(task, features, job.config.train)(predictions, inputs.labels(batch.tensors)) / batch.rows
        loss.backward()
    gradient = {f"gradient/{name}": parameter.grad.cpu() for name, parameter in model.named_parameters() if parameter.grad is not None}
    return float(loss.detach()), start | gradient


def _memory(device: str) -> dict[str, float]:
    if device == "cpu":
        return {"peak_mb": peak_rss_mb()}
    return {"peak_mb": torch.cuda.max_memory_allocated() / MB, "reserved_mb": torch.cuda.max_memory_reserved() / MB}


WORK: Mapping[str, Callable[[RankContext, Mapping[str, Any]], dict[str, Any]]] = {
    "train": train, "gradients": gradients, "profile": profile, "allreduce": allreduce}

if __name__ == "__main__":
    main()
