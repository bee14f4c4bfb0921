"""Checkpoints: named by parameter, whole or passed over, and as few as asked for."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from safetensors.torch import save
from torch import nn

from sparkring.conf.schema import OptimizerConfig
from sparkring.errors import CheckpointDamaged, ConfigError, StorageError
from sparkring.pipelines.training.checkpoints.documents import FORMAT, CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.job.optimizer import learning_rate, make_optimizer
from sparkring.pipelines.training.strategies.state import pack_state, unpack_state
from sparkring.spark_jobs.stored.checkpoints import list_checkpoints
from tests.support import seams

LAYERS = 12


def _trained(seed: int, *, name: str = "adamw", steps: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = make_optimizer(model.parameters(), OptimizerConfig(name=name, lr=0.1, momentum=0.5 if name == "sgd" else 0.0))
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    return model, optimizer


def _document(steps: int, *, loss: float | None = None) -> CheckpointDocument:
    validation = None if loss is None else {"loss": loss}
    return CheckpointDocument(position=Position(epoch=1, step=2, steps_done=steps), validation=validation, content_id="c",
                              dataset_version=1, seed=1, lanes=24, batch_rows=8, code_version="test")


def _save(checkpoints: Checkpoints, document: CheckpointDocument, *states: bytes) -> None:
    """Commit a state in parts, as so many ranks write them."""
    parts = tuple(checkpoints.put_part(state, steps=document.position.steps_done, rank=rank) for rank, state in enumerate(states))
    checkpoints.commit(document.model_copy(update={"parts": parts}))


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_state_that_was_packed_and_unpacked_trains_on_alike(name: str) -> None:
    model, optimizer = _trained(1, name=name)
    other, other_optimizer = _trained(2, name=name, steps=0)
    unpack_state([pack_state([model], optimizer)], [other], other_optimizer)
    for network, stepper in ((model, optimizer), (other, other_optimizer)):
        stepper.zero_grad()
        network(torch.ones(2, 3)).sum().backward()
        stepper.step()
    assert pack_state([other], other_optimizer) == pack_state([model], optimizer)


def test_a_state_of_another_model_is_refused() -> None:
    model, optimizer = _trained(1)
    other = nn.Linear(3, 4)
    with pytest.raises(CheckpointDamaged, match="does not fit the model"):
        unpack_state([pack_state([model], optimizer)], [other], torch.optim.AdamW(other.parameters()))


def test_a_state_with_tied_parameters_can_be_packed_and_they_stay_tied() -> None:
    def tied(value: float) -> nn.Sequential:
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        second.weight = first.weight
        nn.init.constant_(first.weight, value)
        return nn.Sequential(first, second)

    model, other = tied(1.0), tied(2.0)
    packed = pack_state([model], torch.optim.SGD(model.parameters()))
    unpack_state([packed], [other], torch.optim.SGD(other.parameters()))
    assert other[1].weight is other[0].weight
    torch.testing.assert_close(other.state_dict(), model.state_dict())


def _peak_of_unpacking(*, in_turn: bool) -> float:
    """Most memory that unpacking one layer of many takes, in sizes of a layer's state."""
    layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    size = len(pack_state([layers[0]], optimizer))

    def parts() -> Iterator[bytes]:
        for number, layer in enumerate(layers):
            tensors = {f"model/{number}.{name}": tensor for name, tensor in layer.state_dict().items()}
            yield save(tensors)

    layer = nn.Linear(256, 256)
    mine = nn.ModuleDict({"3": layer})
    tracemalloc.start()
    try:
        unpack_state(parts() if in_turn else list(parts()), [mine], torch.optim.SGD(mine.parameters(), lr=0.1), partly=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert torch.equal(layer.weight, layers.state_dict()["3.weight"])
    return peak / size


def test_a_state_that_comes_in_parts_is_never_in_memory_as_a_whole() -> None:
    in_turn, at_once = _peak_of_unpacking(in_turn=True), _peak_of_unpacking(in_turn=False)
    assert in_turn < LAYERS / 2 < LAYERS < at_once, (in_turn, at_once)


def test_the_latest_checkpoint_is_the_one_with_most_steps(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    assert checkpoints.latest() == (None, [])
    for steps in (9, 10):
        _save(checkpoints, _document(steps), f"state {steps}".encode())
    latest, damaged = checkpoints.latest()
    assert latest is not None
    assert (latest.document.position.steps_done, tuple(latest.state), damaged) == (10, (b"state 10",), [])


def _peak_of_reading(checkpoints: Checkpoints) -> int:
    """Most bytes that a checkpoint takes while one looks at its parts in turn."""
    tracemalloc.start()
    try:
        assert [part[:1] for part in checkpoints.read(1).state] == [bytes([number]) for number in range(LAYERS)]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_who_reads_a_large_checkpoint_has_not_all_of_it_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, size = Checkpoints(str(tmp_path)), 1 << 20
    parts = tuple(checkpoints.put_part(bytes([number]) * size, steps=1, rank=number) for number in range(LAYERS))
    checkpoints.commit(_document(1).model_copy(update={"parts": parts}))
    as_a_whole = _peak_of_reading(checkpoints)
    monkeypatch.setattr(seams.PARTS_AT_HAND_BYTES, 2 * size)
    in_parts, state = _peak_of_reading(checkpoints), checkpoints.read(1).state
    assert in_parts < LAYERS / 2 * size < LAYERS * size <= as_a_whole
    for path in (tmp_path / "checkpoints/data").iterdir():
        path.write_bytes(b"other")
    assert state[0][:1] == b"\0", "one of those that are at hand"
    with pytest.raises(StorageError, match=r"has 5 bytes.*it was whole at"):  # a generation that ends of it is tried again, and then
        state[-1]
    with pytest.raises(CheckpointDamaged, match="has 5 bytes"):  # it is passed over
        checkpoints.read(1)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "document"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    _save(checkpoints, _document(1), b"state 1" * 100)
    before = set((tmp_path / "checkpoints/data").iterdir())
    _save(checkpoints, _document(2), b"state 2" * 100)
    (state,) = set((tmp_path / "checkpoints/data").iterdir()) - before
    data = state.read_bytes()
    if damage == "flip":
        state.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    elif damage == "truncate":
        state.write_bytes(data[:-1])
    elif damage == "delete":
        state.unlink()
    else:
        (tmp_path / "checkpoints/2-0.json").write_text("{}")
    latest, damaged = checkpoints.latest()
    assert latest is not None
    assert latest.document.position.steps_done == 1
    assert [("2-0.json" in str(error)) for error in damaged] == [True]


def test_the_latest_few_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    for steps, loss in ((1, 0.9), (2, 0.1), (3, 0.5), (4, None), (5, 0.3)):
        _save(checkpoints, _document(steps, loss=loss), f"state {steps}".encode())
    checkpoints.retain(2)
    assert checkpoints.numbers() == [2, 4, 5]
    assert len(list((tmp_path / "checkpoints/data").iterdir())) == 3
    best = checkpoints.best()
    assert best is not None
    assert tuple(best.state) == (b"state 2",)


def test_the_list_names_the_latest_and_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    for steps, loss in ((1, 0.9), (2, 0.1), (3, None)):
        _save(checkpoints, _document(steps, loss=loss), b"state")
    assert [each.kept_as for each in list_checkpoints(str(tmp_path))] == ["", "best", "latest"]
    _save(checkpoints, _document(4, loss=0.05), b"state")
    (tmp_path / "checkpoints/3-0.json").write_text("{")
    assert [(each.kept_as, bool(each.damaged)) for each in list_checkpoints(str(tmp_path))] == [
        ("", False), ("", False), ("", True), ("latest, best", False)]


def test_what_was_written_of_a_checkpoint_that_did_not_come_about_is_taken_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    _save(checkpoints, _document(1), b"whole")
    part = checkpoints.put_part([b"in ", memoryview(b"pieces")], steps=2, rank=0)
    assert (part.bytes, part.blake3) == (9, blake3(b"in pieces").hexdigest())
    assert len(list((tmp_path / "checkpoints/data").iterdir())) == 2
    checkpoints.drop_part(part)
    checkpoints.drop_part(part)
    assert [checkpoints.is_committed(_document(number)) for number in (1, 2)] == [True, False]
    assert len(list((tmp_path / "checkpoints/data").iterdir())) == 1


def test_a_held_out_loss_that_is_not_a_number_is_kept_and_is_never_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    _save(checkpoints, _document(1, loss=0.5), b"good")
    _save(checkpoints, _document(2, loss=math.nan), b"spoiled")
    latest, damaged = checkpoints.latest()
    assert latest is not None
    assert (tuple(latest.state), damaged) == ((b"spoiled",), [])
    best = checkpoints.best()
    assert best is not None
    assert tuple(best.state) == (b"good",)


def test_the_same_step_may_be_saved_again_after_a_restart(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    _save(checkpoints, _document(3), b"first")
    _save(checkpoints, _document(3), b"again")
    assert tuple(checkpoints.read(3).state) == (b"again",)


def test_a_checkpoint_overtakes_damaged_ones_of_more_steps_and_leaves_no_state_behind(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    _save(checkpoints, _document(469, loss=0.1), b"good")
    _save(checkpoints, _document(600), b"damaged")
    _save(checkpoints, _document(500), b"overtaking")
    checkpoints.retain(1)
    assert checkpoints.numbers() == [469, 500]
    assert len(list((tmp_path / "checkpoints/data").iterdir())) == 2


def test_a_checkpoint_of_another_version_ends_a_run_and_is_not_passed_over_or_deleted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    _save(checkpoints, _document(3), b"earlier")
    _save(checkpoints, _document(6), b"later")
    file = tmp_path / "checkpoints/6-0.json"
    file.write_text(file.read_text().replace(f'"format": {FORMAT}', '"format": 2').replace('"blake3"', '"sha256"'))
    for act in (checkpoints.latest, lambda: checkpoints.retain(1), lambda: checkpoints.document(6)):
        with pytest.raises(ConfigError, match=f"6-0.json is of format 2, this version of sparkring reads format {FORMAT}; run the version"):
            act()
    assert checkpoints.numbers() == [3, 6]
    file.write_text("{}")  # the control: what says nothing of a format is damaged
    found, damaged = checkpoints.latest()
    assert found is not None
    assert found.document.position.steps_done == 3
    assert len(damaged) == 1


def test_the_learning_rate_warms_up_and_falls_by_half_a_cosine() -> None:
    config = OptimizerConfig(lr=1.0, schedule="cosine", warmup_steps=2)
    rates = [learning_rate(step, total_steps=6, config=config, batch_rows=8) for step in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447], abs=1e-6)
    constant = OptimizerConfig(lr=0.2, schedule="constant")
    assert learning_rate(99, total_steps=100, config=constant, batch_rows=8) == 0.2
