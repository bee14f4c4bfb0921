"""The steps that compare the device with the CPU: gradients of the first step, then the losses and weights of whole runs.

    gradients            float64 and float32, every network at once
    train <network>      its layouts (cases.py), each in its precisions, beside the CPU
                         only if a float32 run is too far: how far rounding moves this network on the CPU, as a fact to judge by
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.cases import LANES, NETWORKS, ONE_RANK, TWO_STAGES, WHOLE, Layout, Network, Precision
from benchmarks.gpu_check.compare import BF16_LOSS, LIMITS, Apart, Tensors, distance, farthest, learned, loss_distance, moved, run_limits
from benchmarks.gpu_check.outcome import Check, Findings
from benchmarks.gpu_check.ranks import RanksFailed, run_ranks

CORES_OF_RUN = 4
"""Runs are made side by side, each with so many cores or with all there are."""
MOVED_RUNS = 4
"""Runs that measure rounding, beside the plain one: their initial weights are moved by at most one rounding step each."""


@dataclass(frozen=True)
class Bench:
    """What the steps share."""

    kit: Path
    work: Path
    device: str
    remaining_s: Callable[[], float]
    """Seconds until the check must end."""

    def job(self, config: str, data: str, overrides: list[str], run: Path) -> dict[str, Any]:
        """A training job as plain values."""
        from sparkring.conf.loading import load_config
        from sparkring.pipelines.data.dataset.versions import Dataset
        from sparkring.pipelines.training.job.job import TrainJob

        dataset = Dataset(str(self.kit / "data" / data))
        loaded = load_config(config, overrides)
        fitted = loaded.changed(train=loaded.train.fitted_to(dataset.manifest(1).splits["train"].rows))
        return TrainJob(config=fitted, dataset_url=dataset.url, dataset_version=1, run_url=str(run), generation=0,
                        lanes=LANES).model_dump(mode="json")


@dataclass
class _Collected:
    facts: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def fail(self, what: str, error: str) -> None:
        self.facts[f"error of {what}"] = error
        self.checks.append(Check(f"{what}: failures", 1.0, 0.0))

    def findings(self) -> Findings:
        return Findings(self.facts, tuple(self.checks))


def sum_in_ring(bench: Bench) -> Findings:
    """A ring of one rank sums on the device; Horovod's timeline says by what."""
    folder = bench.work / "ring"
    folder.mkdir(parents=True, exist_ok=True)
    timeline = folder / "timeline.json"
    (answer,) = run_ranks("allreduce", {}, device=bench.device, folder=folder, deadline_s=bench.remaining_s(),
                          extra={"HOROVOD_TIMELINE": str(timeline)})
    wanted = "NCCL_ALLREDUCE" if bench.device == "cuda" else "GLOO_ALLREDUCE"
    checks = [Check(f"wrong sums of {dtype}", float(not found["right"]), 0.0) for dtype, found in answer["sums"].items()]
    summed = timeline.read_text(encoding="utf-8", errors="replace").count(wanted)
    return Findings(
        {"by": wanted, "operations in the timeline": summed, "nccl_built": answer["nccl_built"]}
        | {f"milliseconds of 25 MB, {dtype}": round(1e3 * found["seconds"], 3) for dtype, found in answer["sums"].items()},
        (*checks, Check(f"missing {wanted} in Horovod's timeline", float(summed == 0), 0.0)))


def compare_gradients(bench: Bench) -> Findings:
    """The first step's loss and gradient of every network: on the device and on the CPU."""
    jobs = {_key(network, precision): bench.job(network.config, network.data, network.overrides(precision), bench.work / "unused")
            for network in NETWORKS for precision in WHOLE}
    losses, found = {}, _Collected()
    for side in ("cpu", "device"):
        folder = _gradients_folder(bench, side)
        folder.mkdir(parents=True, exist_ok=True)
        (answer,) = run_ranks("gradients", {"jobs": jobs, "folder": str(folder)}, device=bench.device if side == "device" else "cpu",
                              folder=folder, deadline_s=bench.remaining_s())
        losses[side] = answer["losses"]
        for key, error in answer["errors"].items():
            found.fail(f"{key} on the {side}", error)
    for network in NETWORKS:
        for precision in WHOLE:
            key, limits = _key(network, precision), LIMITS[precision]
            if not all(key in losses[side] for side in losses):
                continue
            apart = distance(_read(bench, "device", key, "gradient"), _read(bench, "cpu", key, "gradient"))
            found.checks += [
                Check(f"{network.name}, {precision}: loss", loss_distance([losses["device"][key]], [losses["cpu"][key]]), limits.loss),
                Check(f"{network.name}, {precision}: gradient", apart.value, limits.gradient)]
            found.facts[f"farthest gradient, {network.name}, {precision}"] = apart.tensor
    return found.findings()


def compare_training(bench: Bench, network: Network) -> Findings:
    """Runs of one network: each on the device beside its run on the CPU.

    In float64 a run is compared with that of one rank, since all layouts here are exact. In float32 the order of sums alone moves the
    losses of the image network by 1e-3 within 16 steps, so a run of two stages is compared with the CPU's own of two stages.
    """
    found, reference = _Collected(), {precision: Run(bench, network, precision, "cpu") for precision in WHOLE}
    in_stages = Run(bench, network, "float32", "cpu", TWO_STAGES)
    runs = [Run(bench, network, precision, "device", layout) for layout in network.layouts for precision in layout.precisions]
    errors = _train([*reference.values(), *([in_stages] if TWO_STAGES in network.layouts else []), *runs])
    for run in (*reference.values(), in_stages):
        if run in errors:
            raise errors[run]
    compared = []
    for run in runs:
        if run in errors:  # the other runs may still tell something
            found.fail(run.name, str(errors[run]))
            continue
        beside = in_stages if run.layout == TWO_STAGES and run.precision == "float32" else reference[
            "float32" if run.precision == "bf16" else run.precision]
        found.facts |= {f"losses of {run.name}": [round(loss, 6) for loss in run.losses], f"peak MB of {run.name}": run.peak_mb}
        compared.append((run, run.apart(beside)))
    limits = {**LIMITS, "float32": run_limits(LIMITS["float32"], reference["float32"].apart(reference["float64"]))}
    if any(run.precision == "float32" and not apart.within(limits["float32"]) for run, apart in compared):
        by_rounding = rounding(bench, network, reference["float64"], reference["float32"])
        found.facts["by rounding on the CPU"] = f"losses {by_rounding.loss:.2e}, learned {by_rounding.learned:.2e}"
    for run, apart in compared:
        if run.precision == "bf16":
            found.checks.append(Check(f"{run.name}: losses", apart.loss, BF16_LOSS))
            continue
        found.checks += [Check(f"{run.name}: losses", apart.loss, limits[run.precision].loss),
                         Check(f"{run.name}: learned", apart.learned, limits[run.precision].learned)]
        found.facts[f"farthest weight of {run.name}"] = apart.tensor
    return found.findings()


def _train(runs: Iterable[Run]) -> dict[Run, RanksFailed]:
    """Train runs side by side, as many as have their cores; returns the errors of those that failed."""
    cores, errors = len(os.sched_getaffinity(0)), dict[Run, RanksFailed]()
    at_once = max(1, cores // CORES_OF_RUN)

    def train(run: Run) -> None:
        try:
            run.train(cores=cores // at_once)
        except RanksFailed as error:
            errors[run] = error

    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(train, runs))
    return errors


def rounding(bench: Bench, network: Network, exact: Run, plain: Run) -> Apart:
    """How far rounding takes a network's run on the CPU, at most: the farthest of several float32 runs from the one in float64.

    No limit follows from it. It tells whoever reads of a float32 run that is too far whether rounding alone explains that.

    Args:
        exact: The run in float64.
        plain: The run in float32. The others differ from it in their initial weights, by one rounding step.
    """
    runs = [Run(bench, network, "float32", "cpu", moved=seed) for seed in range(1, MOVED_RUNS + 1)]
    for error in _train(runs).values():
        raise error
    return farthest([run.apart(exact) for run in (plain, *runs)])


class Run:
    """One run of a network, in a folder of its own."""

    def __init__(self, bench: Bench, network: Network, precision: Precision, side: str, layout: Layout = ONE_RANK, *,
                 moved: int = 0) -> None:
        """``moved``: the seed of the rounding steps that its initial weights are moved by; 0 for none."""
        self._bench, self._network, self.precision, self._side, self.layout, self._moved = bench, network, precision, side, layout, moved
        self.name = f"{precision}, {layout.name}"
        self.losses: list[float] = []
        self.peak_mb: list[int] = []
        """Of each rank."""
        folder = f"{side}-{layout.name.replace(' ', '-')}" + (f"-moved-{moved}" if moved else "")
        self._folder = bench.work / "runs" / _key(network, precision) / folder

    def train(self, *, cores: int) -> None:
        """Train it from the start; its ranks share so many cores."""
        from sparkring.pipelines.training.events.writer import read_events

        bench, network, folder = self._bench, self._network, self._fresh()
        overrides = network.overrides(self.precision, self.layout) + (self._given() if self._moved else [])
        job = bench.job(network.config, network.data, overrides, folder / "run")
        answers = run_ranks("train", {"job": job}, num_ranks=self.layout.num_ranks, cores=cores, folder=folder,
                            deadline_s=bench.remaining_s(), device=bench.device if self._side == "device" else "cpu")
        self.losses = [record["loss"] for record in read_events(str(folder / "run")) if (record["event"], record["rank"]) == ("step", 0)]
        self.peak_mb = [round(answer["peak_mb"]) for answer in answers]

    def apart(self, other: Run) -> Apart:
        """How far it is from another run of the network."""
        weights = distance(self._learned(), other._learned())
        return Apart(loss_distance(self.losses, other.losses), weights.value, weights.tensor)

    def _learned(self) -> Tensors:
        from safetensors.numpy import load

        from sparkring.pipelines.training.job.model_files import load_card, load_weights

        url = str(self._folder / "run")
        return learned(load(load_weights(url, load_card(url))), self._start())

    def _start(self) -> Tensors:
        stored: Precision = "float32" if self.precision == "bf16" else self.precision  # bf16 computes with weights kept in float32
        start = _read(self._bench, "cpu", _key(self._network, stored), "start")
        return moved(start, seed=self._moved) if self._moved else start

    def _given(self) -> list[str]:
        """Settings that begin with its own initial weights."""
        from safetensors.numpy import save

        content, file = save(dict(self._start())), self._folder / "start.safetensors"
        file.write_bytes(content)
        return [f"model.weights={file}", f"model.weights_sha256={hashlib.sha256(content).hexdigest()}"]

    def _fresh(self) -> Path:
        """Its folder, without an earlier try's."""
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "run").mkdir(parents=True)
        return self._folder


def _key(network: Network, precision: Precision) -> str:
    return f"{network.name}-{precision}".replace(", ", "-").replace(" ", "-")


def _gradients_folder(bench: Bench, side: str) -> Path:
    return bench.work / "gradients" / side


def _read(bench: Bench, side: str, key: str, kind: str) -> Tensors:
    """The first step's tensors of one kind: ``gradient`` or ``start``."""
    from safetensors.numpy import load_file

    tensors = load_file(_gradients_folder(bench, side) / f"{key}.safetensors")
    return {name.removeprefix(f"{kind}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{kind}/")}
