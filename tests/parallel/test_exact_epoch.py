"""One epoch on 10,007 rows in 7 unequal files: the same weights on 1, 2, 3 and 5 ranks as in a serial loop of plain torch.

The serial loop here uses none of our code: it takes the rows of each step by their ids from the event stream (itself
checked to hold every row exactly once), reads them with pandas, and trains with torch. A ring that averages the ranks'
averages is the control: it misses by a gap that the test states. A regression is trained the same way, in two stages and on five ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from harness.datasets import NUMERIC, write_dataset
from harness.ranks import run_on_ranks
from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.row_schema import Standardisation
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.model_files import load_card
from sparkring.pipelines.training.train_rank import train_rank
from tests.support.regression_dataset import as_regression, train_frame
from tests.support.training import train_config

FILES = ([1500, 1500], [700], [3001], [0, 6], [1], [1299, 1000], [1000])  # 10,007 rows in 7 unequal files
ROWS = 10_007
BATCH = 512  # the last step has 279 rows
HIDDEN = (16, 8)
LANES = 24
TOLERANCE = 1e-10
CONTROL_GAP = 1e-5
OPTIMIZERS: dict[str, dict[str, Any]] = {"sgd": {"name": "sgd", "lr": 0.05, "momentum": 0.9}, "adam": {"name": "adam", "lr": 0.003}}


class PlainNetwork(nn.Module):
    """The network of the test in plain torch; each layer draws its weights from a seed made of the model's and its own name."""

    def __init__(self, numbers: int = len(NUMERIC)) -> None:
        super().__init__()
        seed = int(torch.randint(2 ** 62, ()))

        def drawn(name: str, make: Callable[[], nn.Module]) -> nn.Module:
            torch.manual_seed(int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1)
            return make()

        self.embeddings = nn.ModuleList([drawn("embeddings.0", lambda: nn.Embedding(4, 3))])
        self.layers = nn.Sequential(drawn("layers.0", lambda: nn.Linear(numbers + 3, 16)), nn.ReLU(),
                                    drawn("layers.2", lambda: nn.Linear(16, 8)), nn.ReLU(), drawn("layers.4", lambda: nn.Linear(8, 1)))

    def forward(self, numeric: Tensor, colour: Tensor) -> Tensor:
        return self.layers(torch.cat([numeric, self.embeddings[0](colour)], dim=1)).squeeze(1)


def _config(optimizer: str, workspace: Path) -> Config:
    return train_config(workspace, model={"hidden": HIDDEN}, train={
        "epochs": 1, "batch_rows": BATCH, "seed": 5, "precision": "float64", "record_rows": True, "lanes": LANES,
        "optimizer": {**OPTIMIZERS[optimizer], "schedule": "constant"}})


def _job(config: Config, dataset: Dataset, run: Path, *, version: int = 1) -> dict[str, Any]:
    job = TrainJob(config=config, dataset_url=dataset.url, dataset_version=version, run_url=str(run), generation=0, lanes=LANES)
    return job.model_dump(mode="json")


def _steps(run: Path) -> list[list[int]]:
    """Row ids of each step over all ranks, from the event stream."""
    records = sorted((record for record in read_events(str(run)) if record["event"] == "step"), key=lambda record: record["step"])
    return [[row for record in group for row in record["row_ids"]] for _, group in groupby(records, key=lambda record: record["step"])]


def _weights(run: Path) -> dict[str, Tensor]:
    (path,) = (run / "model").glob("*.safetensors")
    return load_file(path)


def _serial_weights(dataset: Path, steps: list[list[int]], optimizer: str) -> dict[str, Tensor]:
    """Train on the given rows of each step with nothing but pandas and torch."""
    frame = train_frame(dataset)
    torch.manual_seed(5)
    model = PlainNetwork().double()
    settings = {key: value for key, value in OPTIMIZERS[optimizer].items() if key != "name"}
    stepper = torch.optim.SGD(model.parameters(), **settings) if optimizer == "sgd" else torch.optim.Adam(model.parameters(), **settings)
    loss = nn.BCEWithLogitsLoss()
    for rows in steps:
        batch = frame.loc[rows]
        stepper.zero_grad()
        logits = model(torch.tensor(batch[list(NUMERIC)].to_numpy(np.float64)), torch.tensor(batch["colour"].to_numpy(np.int64)))
        loss(logits, torch.tensor(batch["late"].to_numpy(np.float64))).backward()
        stepper.step()
    return model.state_dict()


def _serial_regression(dataset: Path, fitted: Standardisation, steps: list[list[int]]) -> dict[str, Tensor]:
    """The same for the regression, by torch's own mean of Huber's loss."""
    frame = train_frame(dataset)
    torch.manual_seed(5)
    model = PlainNetwork(2).double()
    stepper, loss = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), nn.HuberLoss(delta=0.7)
    for rows in steps:
        batch = frame.loc[rows]
        stepper.zero_grad()
        predicted = model(torch.tensor(batch[["height", "age"]].to_numpy(np.float64)), torch.tensor(batch["colour"].to_numpy(np.int64)))
        loss(predicted, torch.tensor((batch["weight"].to_numpy(np.float64) - fitted.mean) / fitted.std)).backward()
        stepper.step()
    return model.state_dict()


def _averaging_ring(context: RankContext, dataset_url: str) -> dict[str, list[float]]:
    """The control: each rank takes the mean over its own rows, Horovod averages the means."""
    with Communicator(context):
        dataset = Dataset(dataset_url)
        reader = SplitReader(dataset.store, dataset.manifest(1), "train")
        loader = Loader(reader, LoaderConfig(batch_rows=BATCH, seed=5, lanes=LANES), rank=context.rank, num_ranks=context.size)
        torch.manual_seed(5)
        model = PlainNetwork().double()
        stepper = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        loss = nn.BCEWithLogitsLoss()
        for batch in loader.epoch(0):
            stepper.zero_grad()
            tensors = batch.tensors
            loss(model(tensors["numeric"].double(), tensors["categorical"][:, 0]), tensors["label"].double()).backward()
            for name, parameter in model.named_parameters():
                hvd.allreduce_(parameter.grad, name=name, op=hvd.Average)
            stepper.step()
    return {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()}


def _distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Largest relative difference of a tensor, over the tensors."""
    return max(float((one[name] - other[name]).norm() / other[name].norm()) for name in other)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "dataset"
    write_dataset(folder, FILES)
    return folder


@pytest.fixture(scope="module")
def runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    """One run an optimizer and world size; the ring of 3 sums without shared memory, that of 5 lies on two hosts."""
    made = {}
    for optimizer in OPTIMIZERS:
        for size, hosts, shared in ((1, (0,), True), (2, (0, 0), True), (3, (0, 0, 0), False), (5, (0, 0, 1, 1, 1), True)):
            run = tmp_path_factory.mktemp(f"{optimizer}-{size}") / "run"
            job = _job(_config(optimizer, run.parent), Dataset(str(dataset)), run)
            run_on_ranks(size, train_rank, job, hosts=hosts, shared_memory=shared)
            made[optimizer, size] = run
    return made


@pytest.mark.parallel
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_weights_are_those_of_serial_training_at_any_world_size(
        dataset: Path, runs: dict[tuple[str, int], Path], optimizer: str) -> None:
    serial = _serial_weights(dataset, _steps(runs[optimizer, 1]), optimizer)
    distances = {size: _distance(_weights(runs[optimizer, size]), serial) for size in (1, 2, 3, 5)}
    assert max(distances.values()) <= TOLERANCE, distances


@pytest.mark.parallel
def test_a_regression_has_the_weights_of_serial_training_in_stages_and_on_five_ranks(dataset: Path, tmp_path: Path) -> None:
    stored, fitted = as_regression(dataset)
    layouts: dict[int, dict[str, Any]] = {5: {"num_ranks": 5}, 2: {"num_ranks": 2, "parallel": {"replicas": [1, 1], "micro_batches": 4}}}
    runs = {size: tmp_path / f"run-{size}" for size in layouts}
    for size, layout in layouts.items():
        config = _config("sgd", tmp_path)
        config = config.changed(prepare=config.prepare.changed(task="regression"),
                                train=config.train.changed(loss="huber", huber_delta=0.7, **layout))
        run_on_ranks(size, train_rank, _job(config, stored, runs[size], version=2), hosts=(0, 0, 1, 1, 1)[:size])
    serial = _serial_regression(dataset, fitted, _steps(runs[5]))
    distances = {size: _distance(_weights(run), serial) for size, run in runs.items()}
    assert max(distances.values()) <= TOLERANCE, distances
    assert load_card(str(runs[2])).validation == pytest.approx(load_card(str(runs[5])).validation)
    assert load_card(str(runs[2])).validation.keys() == {"loss", "rmse", "mae", "r2"}


def _halves_of_a_subnormal(context: RankContext, job: dict[str, Any]) -> tuple[float, float]:
    subnormal = torch.full((1,), 1e-40)
    before = float(subnormal / 2)
    train_rank(context, job)
    return before, float(subnormal / 2)


@pytest.mark.parallel
def test_a_rank_takes_subnormal_numbers_for_zero(dataset: Path, tmp_path: Path) -> None:
    """Weights that nothing but decay changes end among them."""
    ((before, after),) = run_on_ranks(1, _halves_of_a_subnormal, _job(_config("sgd", tmp_path), Dataset(str(dataset)), tmp_path / "run"))
    assert before > 0, "the control: as torch begins"
    assert after == 0


@pytest.mark.parallel
def test_each_row_comes_exactly_once_and_each_step_has_the_same_rows_at_any_world_size(runs: dict[tuple[str, int], Path]) -> None:
    steps = {size: [sorted(step) for step in _steps(runs["sgd", size])] for size in (1, 2, 3, 5)}
    assert sorted(row for step in steps[1] for row in step) == list(range(ROWS))
    assert [len(step) for step in steps[1]] == [BATCH] * (ROWS // BATCH) + [ROWS % BATCH]
    assert steps[2] == steps[1]
    assert steps[3] == steps[1]
    assert steps[5] == steps[1]


@pytest.mark.parallel
def test_all_ranks_know_the_same_loss_of_the_whole_step(runs: dict[tuple[str, int], Path]) -> None:
    def losses(size: int, rank: int) -> list[float]:
        records: list[Record] = list(read_events(str(runs["sgd", size])))
        return [record["loss"] for record in records if record["event"] == "step" and record["rank"] == rank]

    assert losses(5, 4) == losses(5, 0)
    assert losses(5, 0) == pytest.approx(losses(1, 0), rel=1e-12)


@pytest.mark.parallel
def test_control_a_ring_of_averages_misses_the_serial_weights(dataset: Path, runs: dict[tuple[str, int], Path]) -> None:
    serial = _serial_weights(dataset, _steps(runs["sgd", 1]), "sgd")
    averaged = {name: torch.tensor(values, dtype=torch.float64).view_as(serial[name])
                for name, values in run_on_ranks(5, _averaging_ring, str(dataset))[0].items()}
    assert _distance(averaged, serial) > CONTROL_GAP
