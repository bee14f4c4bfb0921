"""The peers of benchmarks/recovery.py: the same network, rows a step and kills, with what others offer.

    torch_distributor   pyspark's TorchDistributor with DistributedDataParallel; a checkpoint written by hand, and a loop around ``run``
    horovod_elastic     horovod.spark.run_elastic: a commit to memory as often; ranks that are left go on. In a process and a session of
                        its own, since it sets signal handlers, which only a main thread may, and is given up if it hangs

Each kills a rank of its own at given steps and notes when steps are done, in files that this module reads afterwards. Rows are made
from the step's number, so neither side reads files: what is compared is the way from a kill to the next step.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from sparkring.spark_jobs.spark.progress import Progress

RANKS = 2
STEPS_A_KILL = 140
INTERVAL = 100
ROWS, FEATURES = 48, 32
PATIENCE_S = 180.0
"""Seconds for a peer to do a kill's share of its steps; a peer that hangs is given up."""


@dataclass(frozen=True)
class PeerOutcome:
    """What kills cost."""

    seconds: tuple[float, ...] = ()
    """From each kill to the end of the next step."""
    steps_redone: tuple[int, ...] = ()
    note: str = ""
    """Why there are no figures."""

    @property
    def median_s(self) -> float:
        """Of ``seconds``."""
        return statistics.median(self.seconds)


def run_peer(name: str, folder: Path, kills: int, spark: SparkSession, progress: Progress) -> PeerOutcome:
    """Train by a peer under so many kills; where it cannot run here, the outcome says why."""
    mine = folder / name
    mine.mkdir()
    total = (kills + 1) * STEPS_A_KILL
    progress.note(f"{name}: {total} steps, {kills} kills")
    try:
        PEERS[name](str(mine), total, spark)
    except Exception as error:  # noqa: BLE001 (whatever it is, the table says it)
        return PeerOutcome(note=f"did not run here: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
    return read_outcome(mine)


def read_outcome(folder: Path) -> PeerOutcome:
    """From the notes of a peer's ranks."""
    steps = sorted((one["time"], one["step"]) for path in folder.glob("steps-*.jsonl") for one in map(json.loads, path.open()))
    kills = sorted(json.loads(path.read_text())["time"] for path in folder.glob("kill-*.json"))
    seconds, again = [], []
    for kill in kills:
        before, after = [step for when, step in steps if when <= kill], [(when, step) for when, step in steps if when > kill]
        # A rank that lives may still note the step that it was in: the first step after is one that somebody resumed with.
        resumed = next(((when, step) for when, step in after if step <= max(before) and when > kill + 0.05), after[-1] if after else None)
        if resumed is not None:
            seconds.append(resumed[0] - kill)
            again.append(max(0, max(before) + 1 - resumed[1]))
    return PeerOutcome(tuple(seconds), tuple(again), note="" if seconds else "no step came after a kill")


class Notes:
    """What one process of a peer notes, and the kills that it makes of itself."""

    def __init__(self, folder: str, rank: int) -> None:
        self._folder, self._rank = Path(folder), rank
        self._steps = (self._folder / f"steps-{os.getpid()}.jsonl").open("a", buffering=1)

    def step(self, number: int) -> None:
        """Step ``number`` is done; the last rank dies where a kill is due that has not been."""
        self._steps.write(json.dumps({"time": time.time(), "step": number}) + "\n")
        kill = (number + 1) // STEPS_A_KILL
        mark = self._folder / f"kill-{kill}.json"
        if self._rank == RANKS - 1 and kill and (number + 1) % STEPS_A_KILL == 0 and not mark.exists():
            mark.write_text(json.dumps({"time": time.time()}))
            os.kill(os.getpid(), signal.SIGKILL)


def _network() -> Any:
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256), torch.nn.ReLU(),
                               torch.nn.Linear(256, 1)).double()


def _loss(network: Any, step: int, rank: int, size: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(step * 100 + rank)
    rows = torch.randn(ROWS // size, FEATURES, generator=generator, dtype=torch.float64)
    return torch.nn.functional.binary_cross_entropy_with_logits(network(rows)[:, 0], (rows[:, 0] > 0).double())


def _torch_rank(folder: str, total: int) -> None:
    """One process of TorchDistributor: resume, train, save."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    network = DistributedDataParallel(_network())
    optimizer = torch.optim.Adam(network.parameters())
    saved, first = Path(folder, "checkpoint.pt"), 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    notes = Notes(folder, rank)
    for step in range(first, total):
        optimizer.zero_grad()
        _loss(network, step, rank, size).backward()
        optimizer.step()
        notes.step(step)
        if (step + 1) % INTERVAL == 0 and rank == 0:
            torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, saved.with_suffix(".new"))
            saved.with_suffix(".new").rename(saved)
    distributed.destroy_process_group()


def _by_torch_distributor(folder: str, total: int, _spark: SparkSession) -> None:
    """Start again as long as it fails and something was killed."""
    from pyspark.ml.torch.distributor import TorchDistributor

    kills = 0
    while True:
        try:
            TorchDistributor(num_processes=RANKS, local_mode=False, use_gpu=False).run(_torch_rank, folder, total)
            return
        except Exception:
            marks = len(list(Path(folder).glob("kill-*.json")))
            if marks == kills:
                raise
            kills = marks


def _elastic_rank(folder: str, total: int) -> None:
    """One process of elastic Horovod."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    network = _network()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(network.parameters()), named_parameters=network.named_parameters())
    state = hvd.elastic.TorchState(model=network, optimizer=optimizer, step=0)
    notes = Notes(folder, int(os.environ.get("HOROVOD_RANK", hvd.rank())))

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def work(state: Any) -> None:
        while state.step < total:
            optimizer.zero_grad()
            _loss(network, state.step, hvd.rank(), hvd.size()).backward()
            optimizer.step()
            notes.step(state.step)
            state.step += 1
            if state.step % INTERVAL == 0:
                state.commit()

    work(state)


def _by_horovod_elastic(folder: str, total: int, _spark: SparkSession) -> None:
    """This file as a program; all that it has started is ended with it."""
    said = Path(folder, "output.txt")
    with said.open("wb") as output, subprocess.Popen(
            [sys.executable, "-m", "benchmarks.support.recovery_peers", folder, str(total)], stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True) as program:
        started = [psutil.Process(program.pid)]
        try:
            code = program.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            started += started[0].children(recursive=True)
            raise TimeoutError(f"it did not end within {PATIENCE_S:g} s") from None
        finally:
            _end(started, group=program.pid)
    if code:
        lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {code}")


def _end(processes: list[psutil.Process], *, group: int) -> None:
    """Those, and what is left of their group."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _elastic_program(folder: str, total: int) -> None:
    """What runs in the process of its own: a session as wide as the ring, and elastic Horovod in the main thread."""
    import horovod.spark

    from sparkring.conf.schema import SparkConfig
    from sparkring.spark_jobs.spark.session import spark_session

    spark = spark_session(SparkConfig(master=f"local[{RANKS},4]"), app_name="horovod_elastic")
    try:
        horovod.spark.run_elastic(_elastic_rank, args=(folder, total), num_proc=RANKS, min_num_proc=1, max_num_proc=RANKS,
                                  start_timeout=30, elastic_timeout=60, verbose=0)
    finally:
        spark.stop()


PEERS: dict[str, Callable[[str, int, SparkSession], None]] = {
    "torch_distributor": _by_torch_distributor, "horovod_elastic": _by_horovod_elastic}


if __name__ == "__main__":
    _elastic_program(sys.argv[1], int(sys.argv[2]))
