"""The step that measures a network on the device: rows a second, the loader's share, checkpoints, memory, from the run's own events;
beside them the seconds of a step that the planner predicts for this device.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from benchmarks.gpu_check.cases import LANES, SpeedCase
from benchmarks.gpu_check.numerics import Bench
from benchmarks.gpu_check.outcome import Findings
from benchmarks.gpu_check.ranks import run_ranks

WARM_UP_STEPS = 10
Record = Mapping[str, Any]


def measure(bench: Bench, case: SpeedCase) -> Findings:
    """Train one network on one rank and read its events."""
    from sparkring.pipelines.training.events.writer import read_events

    folder = bench.work / "speed" / case.name.replace(", ", "-").replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "run").mkdir(parents=True)
    job = bench.job(case.config, case.data, case.overrides(bench.device), folder / "run")
    (answer,) = run_ranks("train", {"job": job}, device=bench.device, folder=folder, deadline_s=bench.remaining_s())
    records = list(read_events(str(folder / "run")))
    memory = {"peak MB": round(answer["peak_mb"])} | ({"reserved MB": round(answer["reserved_mb"])} if "reserved_mb" in answer else {})
    (profiled,) = run_ranks("profile", {"job": job}, device=bench.device, folder=folder, deadline_s=bench.remaining_s())
    figures = {"batch rows": job["config"]["train"]["batch_rows"], **rates(records),
               "planned step ms": round(1e3 * planned_s(job, profiled["profile"]), 3), **checkpoints(records), **memory}
    shutil.rmtree(folder / "run")  # its checkpoints are large
    return Findings(figures)


def planned_s(job: Mapping[str, Any], profile: Any) -> float:
    """The seconds of a step on one rank, as the planner predicts them from that rank's measurements; reading rows is not in them."""
    from sparkring.pipelines.data.dataset.versions import Dataset
    from sparkring.pipelines.parallel.planner.planner import best_layout
    from sparkring.pipelines.training.job.job import TrainJob
    from sparkring.pipelines.training.profiling.fit import measured
    from sparkring.spark_jobs.auto_layout import layout_constraints

    parsed = TrainJob.model_validate(job)
    train = parsed.config.train
    model, cluster = measured(parsed.config, Dataset(parsed.dataset_url).manifest(parsed.dataset_version), [profile])
    return best_layout(model, cluster, world=1, batch_rows=train.step_rows, fixed=layout_constraints(train, lanes=LANES)).seconds


def rates(records: Iterable[Record]) -> dict[str, float]:
    """Rows a second and the loader's share, over the steps of each epoch, from one step's end to the next.

    The first steps of a run warm up and do not count; nor do evaluation and the pause between epochs.
    """
    steps = [record for record in records if record["event"] == "step"][WARM_UP_STEPS:]
    rows = seconds = waited_s = 0.0
    counted = 0
    for _, epoch in groupby(steps, key=lambda record: record["epoch"]):
        first, *others = epoch
        rows += sum(record["global_rows"] for record in others)
        waited_s += sum(record["data_s"] for record in others)
        seconds += (others[-1]["time"] - first["time"]) if others else 0.0
        counted += len(others)
    if not seconds:
        raise ValueError(f"a run of {len(steps)} steps after the first {WARM_UP_STEPS} is too short to be measured")
    return {"steps measured": counted, "rows/s": round(rows / seconds), "step ms": round(1e3 * seconds / counted, 3),
            "loader's share": round(waited_s / seconds, 4)}


def checkpoints(records: Iterable[Record]) -> dict[str, float]:
    """The slowest checkpoint."""
    written = [record for record in records if record["event"] == "checkpoint"]
    if not written:
        return {"checkpoints": 0}
    return {"checkpoints": len(written), "checkpoint MB": round(max(record["bytes"] for record in written) / 1e6, 1),
            "checkpoint s": round(max(record["write_s"] for record in written), 3),
            "training waited s": round(max(record["seconds"] for record in written), 3)}
