"""Networks of the user's own: found by name, cut where their modules meet, drawn alike anywhere, refused where ranks would differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from sparkring.cli.terminal.network_files import register_file
from sparkring.conf.schema.model import ImageModelConfig, TabularModelConfig
from sparkring.errors import ConfigError
from sparkring.models import networks
from sparkring.models.batch_norm import normalises_rows
from sparkring.models.blocks import LOGITS, Block, BlockList, StageModule, WholeModel, X, part_elements
from sparkring.models.build import Shapes, build_model, list_blocks, without_dropout
from sparkring.models.dropout import RowDropout
from sparkring.models.inputs import ROW_SEEDS
from sparkring.models.sequential import blocks_of
from tests.support import seams

NUMBERS = Shapes(num_numeric=3)
BOTH = Shapes(num_numeric=3, cardinalities=(5,))


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.NETWORK_BUILDS, {})


def wide(shapes: Shapes, *, width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(shapes.num_numeric, width), nn.ReLU(), nn.Linear(width, shapes.num_outputs))


class Both(nn.Module):
    """Takes numbers and categories."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(shapes.cardinalities[0], 2), nn.Linear(shapes.num_numeric + 2, 1)

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([numeric, self.table(categorical[:, 0])], 1))
        return logits


def dropping(shapes: Shapes, *, dropout: float = 0.0) -> BlockList:
    seeds = (ROW_SEEDS,) if dropout else ()
    return BlockList((Block("0", {"0": lambda: nn.Linear(shapes.num_numeric, 4)}, reads=("numeric",)),
                      Block("1", {"1": lambda: RowDropout(dropout, place="1")}, reads=(X, *seeds)),
                      Block("2", {"2": lambda: nn.Linear(4, 1)}, run=lambda parts, x: parts[0](x)[:, 0], writes=(LOGITS,))),
                     inputs=("numeric", *seeds))


def listed(first: nn.Module) -> BlockList:
    """Answers with a column."""
    return BlockList((Block("a", {"a": lambda: first}, reads=("numeric",)),
                      Block("b", {"b": lambda: nn.Linear(3, 1)}, writes=(LOGITS,))), inputs=("numeric",))


class Scaled(nn.Sequential):
    """A sequence that computes something else than its modules in turn."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 3), nn.Linear(3, 1))
        self.scale = nn.Parameter(torch.full((1,), 2.0))

    def forward(self, numeric: Tensor) -> Tensor:
        logits: Tensor = self[1](numeric + self[0](numeric)) * self.scale
        return logits


class Flattening(nn.Module):
    """Flattens its rows as many networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1)

    def forward(self, numeric: Tensor) -> Tensor:
        logits: Tensor = self.head(numeric.view(numeric.size(0), -1))
        return logits


class Bare(nn.Module):
    """Weights that no layer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, numeric: Tensor) -> Tensor:
        return (self.weights * numeric).sum(1)


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, numeric: Tensor) -> Tensor:
        logits: Tensor = self.second(self.first(numeric)).sum(1)
        return logits


class Dropping(nn.Module):
    """Drops by row."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout  # not torch's own layer: what it does with that is its own
        self.drop, self.head = RowDropout(dropout, place="network.drop"), nn.Linear(3, 1)

    def forward(self, numeric: Tensor, row_seeds: Tensor | None) -> Tensor:
        logits: Tensor = self.head(self.drop(numeric, row_seeds))
        return logits


def test_a_sequence_is_cut_between_its_modules_and_drawn_alike_wherever() -> None:
    networks.network(wide)
    config = TabularModelConfig(network="wide", options={"width": 6})
    blocks = list_blocks(config, NUMBERS)
    assert [block.name for block in blocks] == ["0", "1", "2"]
    whole = StageModule(blocks, seed=7).state_dict()
    parts = [StageModule(list_blocks(config, NUMBERS), first=first, last=first + 1, seed=7).state_dict() for first in (2, 0)]
    torch.rand(3)  # what else was drawn in a process changes nothing
    for part in parts:
        assert part
        assert all(torch.equal(tensor, whole[name]) for name, tensor in part.items())
    assert not torch.equal(StageModule(blocks, seed=8).state_dict()["0.weight"], whole["0.weight"])  # the control
    assert whole["0.weight"].shape == (6, 3)


def test_listing_a_network_leaves_torch_s_generator_as_it_is() -> None:
    networks.network(wide)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    list_blocks(TabularModelConfig(network="wide"), NUMBERS)
    assert torch.equal(torch.rand(1), expected)


def test_any_module_is_one_block_that_takes_the_rows_by_name() -> None:
    networks.network(Both)
    model = build_model(TabularModelConfig(network="Both"), BOTH)
    numeric, categorical = torch.randn(7, 3), torch.randint(5, (7, 1))
    logits = model(numeric=numeric, categorical=categorical)
    assert logits.shape == (7,)
    inner = model.get_submodule("network")
    torch.testing.assert_close(logits, inner(categorical=categorical, numeric=numeric)[:, 0])


def test_blocks_are_taken_as_they_are_and_dropout_goes_by_row() -> None:
    networks.network(dropping)
    model = build_model(TabularModelConfig(network="dropping", dropout=0.5), NUMBERS)
    rows, seeds = torch.randn(6, 3), torch.arange(6)
    both = model(numeric=rows, row_seeds=seeds), model(numeric=rows.flip(0), row_seeds=seeds.flip(0)).flip(0)
    torch.testing.assert_close(*both)
    without = build_model(TabularModelConfig(network="dropping"), NUMBERS)
    assert without(numeric=rows).shape == (6,)


@pytest.mark.parametrize(("made", "config", "shapes", "message"), [
    pytest.param(lambda _: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1)), {}, NUMBERS,
                 r"holds a Dropout \(1\) with dropout 0.1, which would drop other elements on each rank; use .*RowDropout", id="dropout"),
    pytest.param(lambda _: nn.Sequential(nn.TransformerEncoderLayer(4, 2, dropout=0.2)), {}, NUMBERS,
                 r"with dropout 0.2, which would drop other", id="dropout within attention"),
    pytest.param(lambda _: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), {}, NUMBERS,
                 r"holds a BatchNorm1d \(1\), whose statistics would cover one rank's rows only; use .*StepBatchNorm", id="batch norm"),
    pytest.param(lambda _: nn.Sequential(nn.Linear(3, 1)), {}, BOTH,
                 r"takes one tensor, but these rows have numeric, categorical; return a module whose forward\(numeric, categorical\)",
                 id="a sequence for two tensors"),
    pytest.param(lambda _: nn.Sequential(nn.Linear(3, 4), nn.RReLU()), {}, NUMBERS, r"holds a RReLU \(1\), which would draw other",
                 id="slopes that are drawn"),
    pytest.param(lambda _: nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True)), {}, NUMBERS,
                 r"holds a InstanceNorm1d \(0\), whose statistics", id="instance norm that keeps statistics"),
    pytest.param(lambda _: listed(nn.Dropout(0.1)), {}, NUMBERS, r"holds a Dropout \(a\) with dropout 0.1", id="dropout in a list"),
    pytest.param(lambda _: listed(nn.BatchNorm1d(3)), {}, NUMBERS, r"holds a BatchNorm1d \(a\), whose", id="batch norm in a list"),
    pytest.param(lambda _, dropout: Both(BOTH) if dropout else None, {"dropout": 0.5}, BOTH,
                 r"its forward\(.*\).* is called with numeric, categorical, row_seeds by name, since model.dropout is above 0",
                 id="no seeds for dropout"),
    pytest.param(lambda _: 5, {}, NUMBERS, r"returned a int; return a torch.nn.Module or a BlockList", id="no module"),
    pytest.param(lambda _shapes, _width: None, {"options": {"depth": 3}}, NUMBERS, r"its function is made\(_shapes, _width\), called with",
                 id="other options"),
    pytest.param(lambda _shapes: None, {"dropout": 0.5}, NUMBERS, r"its function is made\(_shapes\), called with", id="no dropout")])
def test_what_would_not_do_is_told(made: object, config: dict[str, object], shapes: Shapes, message: str) -> None:
    made.__name__ = "made"  # type: ignore[attr-defined]
    networks.network(made)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        list_blocks(TabularModelConfig.model_validate({"network": "made", **config}), shapes)


def test_a_name_that_nobody_registered_runs_nothing() -> None:
    networks.network(wide)
    with pytest.raises(ConfigError, match=r"=wild: no network of that name is registered; did you mean 'wide'\?.*--networks FILE"):
        list_blocks(ImageModelConfig(kind="image", network="wild"), Shapes(image=(1, 8, 8)))
    for name in ("os.system", "__import__('os')", ""):
        with pytest.raises(ValidationError, match="network"):
            TabularModelConfig(network=name)


@pytest.mark.parametrize(("config", "message"), [
    ({"options": {"width": 3}}, "are for your own network; name it with model.network"),
    ({"network": "wide", "hidden": [3]}, "hidden describes the shipped")])
def test_a_config_describes_one_network(config: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TabularModelConfig.model_validate(config)


def test_a_config_with_a_network_survives_its_way_to_the_ranks() -> None:
    config = TabularModelConfig(network="wide", options={"width": 3, "names": ["a", None, {"b": 1.5}]})
    assert TabularModelConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_function_that_is_shipped_brings_the_networks_along(monkeypatch: pytest.MonkeyPatch) -> None:
    assert networks.REGISTRY.carrying(len) is len  # the control: there is none
    networks.network(wide)
    carried = networks.REGISTRY.carrying(sorted)
    monkeypatch.setattr(seams.NETWORK_BUILDS, {})
    assert carried([2, 1], reverse=True) == [2, 1]
    assert networks.REGISTRY.builds() == {"wide": wide}


def test_a_file_registers_what_it_decorates_or_says_why_not(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import sparkring\n\n@sparkring.network\ndef mine(shapes):\n    return shapes\n", encoding="utf-8")
    register_file(file)
    assert networks.REGISTRY.builds()["mine"]("x") == "x"
    for text, message in (("x = 1", "registers no network"), ("1 / 0", "ZeroDivisionError: division by zero"), (None, "no Python file")):
        other = tmp_path / f"other{len(message)}.py"
        if text is not None:
            other.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            register_file(other)


def _scaled(_shapes: Shapes) -> nn.Module:
    return Scaled()


def _dropping(_shapes: Shapes, *, dropout: float) -> nn.Module:
    return Dropping(dropout)


def _listed(_shapes: Shapes) -> BlockList:
    return listed(nn.Identity())


def test_a_sequence_with_a_forward_of_its_own_is_not_taken_apart() -> None:
    networks.network(_scaled)
    model = build_model(TabularModelConfig(network="_scaled"), NUMBERS)
    rows = torch.randn(5, 3)
    inner = model.get_submodule("network")
    assert isinstance(inner, Scaled)
    torch.testing.assert_close(model(numeric=rows), inner(rows)[:, 0])
    with pytest.raises(ConfigError, match="Scaled cannot be cut into stages: it lists no blocks"):
        blocks_of(Scaled())
    assert len(blocks_of(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))) == 2  # the control


def test_a_network_with_dropout_predicts_without_it() -> None:
    networks.network(_dropping)
    config = TabularModelConfig(network="_dropping", dropout=0.5)
    trained = build_model(config, NUMBERS)
    rows, seeds = torch.randn(64, 3), torch.arange(64)
    predicts = build_model(without_dropout(config), NUMBERS)
    predicts.load_state_dict(trained.state_dict())
    expected = predicts(numeric=rows)
    torch.testing.assert_close(expected, predicts.get_submodule("network.head")(rows)[:, 0])
    assert not torch.allclose(trained(numeric=rows, row_seeds=seeds), expected)  # the control: while it trains, it drops


@pytest.mark.parametrize("made", [pytest.param(Bare, id="one block"), pytest.param(lambda: nn.Sequential(Bare()), id="in a sequence")])
def test_a_module_with_weights_of_its_own_needs_no_reset_parameters_to_be_looked_at(made: Callable[[], nn.Module]) -> None:
    def weighed(_shapes: Shapes) -> nn.Module:
        return made()

    networks.network(weighed)
    blocks = list_blocks(TabularModelConfig(network="weighed"), NUMBERS)
    assert not normalises_rows(blocks)
    assert sum(part_elements(blocks[0]).values()) == 3
    assert float(WholeModel(blocks)(numeric=torch.ones(1, 3))) == 6.0


@pytest.mark.parametrize("made", [
    pytest.param(Flattening, id="one block"), pytest.param(lambda: nn.Sequential(nn.Linear(3, 3), Flattening()), id="in a sequence")])
def test_a_network_that_fails_without_rows_takes_a_micro_batch_of_none(made: Callable[[], nn.Module]) -> None:
    def flattening(_shapes: Shapes) -> nn.Module:
        return made()

    networks.network(flattening)
    model = WholeModel(list_blocks(TabularModelConfig(network="flattening"), NUMBERS))
    with pytest.raises(RuntimeError, match="cannot reshape tensor of 0 elements"):  # the control
        made()(torch.empty(0, 3))
    logits = model(numeric=torch.empty(0, 3))
    assert logits.shape == (0,)
    logits.sum().backward()
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):  # other errors stay
        model(numeric=torch.empty(2, 4))


def test_blocks_may_answer_with_a_column() -> None:
    networks.network(_listed)
    assert build_model(TabularModelConfig(network="_listed"), NUMBERS)(numeric=torch.randn(5, 3)).shape == (5,)


@pytest.mark.parametrize("made", [pytest.param(Tied, id="one block"), pytest.param(lambda: nn.Sequential(Tied()), id="in a sequence")])
def test_a_sketch_gets_memory_and_its_tied_weights_stay_one(made: Callable[[], nn.Module]) -> None:
    def sketched(_shapes: Shapes) -> nn.Module:
        with torch.device("meta"):
            return made()

    networks.network(sketched)
    model = build_model(TabularModelConfig(network="sketched"), NUMBERS)
    assert sum(parameter.numel() for parameter in model.parameters()) == 9 + 3 + 3
    assert model(numeric=torch.randn(5, 3)).shape == (5,)
    state = model.state_dict()
    first, second = (next(state[name] for name in state if name.endswith(f"{layer}.weight")) for layer in ("first", "second"))
    assert first.data_ptr() == second.data_ptr()
