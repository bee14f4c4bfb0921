"""What checkpoints cost: the share of training time that 2 ranks wait for them, and how fast they are written, beside a plain copy.

    uv run python -m benchmarks.checkpoint

A decoder of 14 M parameters with Adam (165 MB of state) trains on 2 ranks of 1 thread each, and saves every 50 steps by the code that
``sparkring train`` has. ``wait_share`` is what a rank waits for the copy of its state, over all seconds of training. What the thread that
writes takes from the cores meanwhile shows in ``slowdown``: the same steps with a checkpoint over those without, in turn.

``copy_ratio`` is the bytes a second of a checkpoint of 40 M parameters with Adam (480 MB), from its beginning to its commit, over those of
a plain copy of the same files by the same 2 ranks, each flushed to the disk with the folder that names it; in turn, too.

    --steps N     steps between two checkpoints (default 50)
    --rounds N    of each comparison (default 5)
    --folder F    where to write, on the disk that is to be measured (default: where temporary files go)
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.support.report import print_result
from harness.ranks import run_on_ranks
from sparkring.models.blocks import WholeModel
from sparkring.models.text import text_blocks
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.names import DATA
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.checkpoints.writer import CheckpointWriter, Saved
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.pipelines.training.strategies.state import dealt, named_tensors

RANKS, WARM_UP = 2, 3
MILLIONS = 40
"""Of parameters of what is written and copied."""
VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, ROWS = 8000, 384, 6, 6, 64, 2


class Saving:
    """One rank's checkpoints."""

    def __init__(self, communicator: Communicator, folder: Path, *, keep: int) -> None:
        self._rank, self._size = communicator.context.rank, communicator.context.size
        self._writer = CheckpointWriter(Checkpoints(str(folder)), communicator, keep=keep)
        self._steps = 0

    def begin(self, state: Mapping[str, Tensor]) -> None:
        """Save this rank's part of a state that all ranks hold, dealt as where each holds the whole model."""
        self._steps += 1
        mine = dealt({name: tensor.numel() for name, tensor in state.items()}, self._rank, self._size)
        self._writer.begin({name: state[name] for name in mine}, CheckpointDocument(
            position=Position(steps_done=self._steps), content_id="", dataset_version=1, seed=0, lanes=24, batch_rows=ROWS,
            code_version=""))

    def end(self) -> Saved:
        """Wait for its commit."""
        self._writer.finish()
        (saved,) = self._writer.heard()
        assert not saved.failure, saved.failure
        return saved


class Training:
    """A rank's model, and what a step of it is."""

    def __init__(self, communicator: Communicator) -> None:
        torch.manual_seed(communicator.context.rank)
        self._tokens = torch.randint(1, VOCABULARY, (ROWS, LENGTH))
        torch.manual_seed(0)
        self._model = WholeModel(text_blocks(VOCABULARY, LENGTH, width=WIDTH, layers=LAYERS, heads=HEADS, tied=True))
        self._optimizer = torch.optim.Adam(self._model.parameters(), fused=True)
        self._ring = GradientRing(self._model.parameters(), communicator, bucket_mb=25.0)

    def step(self) -> None:
        """One step of all ranks."""
        logits = self._model(tokens=self._tokens)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), self._tokens[:, 1:].flatten()) / RANKS
        self._ring.begin(loss)
        loss.backward()
        self._ring.finish()
        self._optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """All of it by name."""
        return dict(named_tensors([self._model], self._optimizer))

    def close(self) -> None:
        """Let go of what is shared."""
        self._ring.close()


Seen = dict[str, list[float]]


def _waiting(context: RankContext, folder: str, steps: int, order: Sequence[str]) -> Seen:
    """Seconds of so many steps, with a checkpoint begun at their start and without, and what was waited for it."""
    seen: Seen = {"waited": []}
    with Communicator(context) as communicator:
        training, saving = Training(communicator), Saving(communicator, Path(folder), keep=1)
        for _ in range(WARM_UP):
            training.step()
        saving.begin(training.state())  # the first copy takes its memory from the system
        saving.end()
        for kind in order:
            communicator.barrier("round")
            began = time.perf_counter()
            if kind == "with":
                saving.begin(training.state())
                seen["waited"].append(time.perf_counter() - began)
            for _ in range(steps):
                training.step()
            seen[kind] = [time.perf_counter() - began]
            if kind == "with":
                saving.end()
        training.close()
    return seen


def _copying(context: RankContext, folder: str, rounds: int) -> Seen:
    """Seconds that both ranks take to write a checkpoint, and to copy the files of one; round after round; and its bytes."""
    seen: Seen = {"checkpoint": [], "copy": [], "bytes": []}
    state = {f"layers.{number}.{kind}": torch.rand(1000, 1000) for number in range(MILLIONS) for kind in ("weight", "first", "second")}
    with Communicator(context) as communicator:
        saving, checkpoints = Saving(communicator, Path(folder), keep=1000), Checkpoints(folder)
        saving.begin(state)
        saving.end()
        communicator.barrier("saved")  # rank 0 has committed it
        for number in range(rounds):
            for kind in ("copy", "checkpoint") if number % 2 else ("checkpoint", "copy"):
                parts = checkpoints.document(checkpoints.numbers()[-1]).parts
                source, copy = Path(folder) / DATA / parts[context.rank].name, Path(folder) / "copies" / str(context.rank)
                communicator.barrier("begin")
                began = time.perf_counter()
                if kind == "copy":
                    _copy(source, copy)
                else:
                    saving.begin(state)
                    saving.end()
                communicator.barrier("end")
                seen[kind].append(time.perf_counter() - began)
                copy.unlink(missing_ok=True)  # what makes room is not measured
                if context.rank == 0:
                    checkpoints.retain(1)
                communicator.barrier("kept")
                seen["bytes"] = [float(sum(part.bytes for part in parts))]
    return seen


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(source, target)
    for path in (target, target.parent):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def _slowest(ranks: Sequence[Seen]) -> Seen:
    """Of each time the longest of any rank: the others wait for it."""
    return {kind: [max(times) for times in zip(*(rank[kind] for rank in ranks), strict=True)] for kind in ranks[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What checkpoints cost.")
    parser.add_argument("--steps", type=int, default=50, help="between two checkpoints")
    parser.add_argument("--rounds", type=int, default=5, help="of each comparison")
    parser.add_argument("--folder", help="where to write, on the disk that is to be measured; default where temporary files go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparkring-checkpoint-", dir=options.folder) as name:
        orders = [("without", "with") if number % 2 else ("with", "without") for number in range(options.rounds)]
        rounds = [_slowest(run_on_ranks(RANKS, _waiting, f"{name}/waiting", options.steps, order, cycle_ms=None)) for order in orders]
        copying = run_on_ranks(RANKS, _copying, f"{name}/copying", options.rounds, cycle_ms=None)
    with_s, without_s, waited_s = ([one[kind][0] for one in rounds] for kind in ("with", "without", "waited"))
    written = _slowest(copying)
    checkpoint_s, copy_s = written["checkpoint"], written["copy"]
    (size,) = written["bytes"]
    print_result([
        {"what": f"{options.steps} steps without a checkpoint", "seconds": f"{statistics.median(without_s):.2f}", "MB/s": ""},
        {"what": f"{options.steps} steps and a checkpoint", "seconds": f"{statistics.median(with_s):.2f}", "MB/s": ""},
        {"what": "waited of these", "seconds": f"{statistics.median(waited_s):.3f}", "MB/s": ""},
        {"what": f"checkpoint of {size / 1e6:.0f} MB", "seconds": f"{statistics.median(checkpoint_s):.2f}",
         "MB/s": f"{size / 1e6 / statistics.median(checkpoint_s):.0f}"},
        {"what": "plain copy of its files", "seconds": f"{statistics.median(copy_s):.2f}",
         "MB/s": f"{size / 1e6 / statistics.median(copy_s):.0f}"}], {
        "wait_share": sum(waited_s) / sum(with_s),
        "copy_ratio": statistics.median(copy / checkpoint for copy, checkpoint in zip(copy_s, checkpoint_s, strict=True)),
        "slowdown": statistics.median(one / other for one, other in zip(with_s, without_s, strict=True)),
        "checkpoint_mb_per_s": size / 1e6 / statistics.median(checkpoint_s), "copy_mb_per_s": size / 1e6 / statistics.median(copy_s)})


if __name__ == "__main__":
    main()
