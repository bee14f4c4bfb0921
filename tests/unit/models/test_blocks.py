"""A model cut into runs of blocks is the model: same names, same weights, same outputs, and nothing built that is not its own."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from sparkring.conf.schema import ImageModelConfig, ModelConfig, TabularModelConfig, TextModelConfig
from sparkring.errors import ConfigError
from sparkring.models.blocks import Block, BlockList, StageModule, WholeModel, draw_seed, part_elements, seeded
from sparkring.models.build import Shapes, build_model, list_blocks
from sparkring.models.sequential import blocks_of, sequential_blocks
from sparkring.models.text import text_blocks

MODELS: dict[str, tuple[ModelConfig, Shapes, dict[str, Tensor]]] = {
    "tabular": (TabularModelConfig(hidden=(8, 6)), Shapes(num_numeric=3, cardinalities=(5, 4)),
                {"numeric": torch.randn(4, 3), "categorical": torch.tensor([[0, 1], [4, 3], [2, 2], [1, 0]])}),
    "image": (ImageModelConfig(kind="image", widths=(8, 12)), Shapes(image=(1, 8, 8), num_outputs=3), {"image": torch.randn(4, 1, 8, 8)}),
    "text": (TextModelConfig(kind="text", width=8, layers=2, heads=2), Shapes(length=6, vocabulary=11),
             {"tokens": torch.arange(24).view(4, 6) % 11}),
    "text, untied": (TextModelConfig(kind="text", width=8, layers=2, heads=2, tied=False), Shapes(length=6, vocabulary=11),
                     {"tokens": torch.arange(24).view(4, 6) % 11}),
}


def _run_stages(blocks: BlockList, bounds: Sequence[int], seed: int,
                tensors: dict[str, Tensor]) -> tuple[list[StageModule], dict[str, Tensor]]:
    stages = [StageModule(blocks, first=first, last=last, seed=seed) for first, last in pairwise(bounds)]
    for stage in stages:
        assert set(tensors) >= set(blocks.crossing(stage.first))
        tensors = stage({name: tensors[name] for name in blocks.crossing(stage.first)})
    return stages, tensors


@pytest.mark.parametrize("kind", MODELS)
def test_stages_of_any_cut_have_the_names_weights_and_outputs_of_the_whole_model(kind: str) -> None:
    config, shapes, inputs = MODELS[kind]
    blocks = list_blocks(config, shapes)
    torch.manual_seed(3)
    whole = build_model(config, shapes)
    torch.manual_seed(3)
    seed = draw_seed()
    expected = whole.state_dict()
    for bounds in [(0, 1, len(blocks)), (0, 2, 3, len(blocks)), tuple(range(len(blocks) + 1))]:
        torch.randn(7)  # what else is drawn does not matter
        stages, outputs = _run_stages(blocks, bounds, seed, dict(inputs))
        torch.testing.assert_close(outputs["logits"], whole(**inputs), rtol=0, atol=0)
        found: dict[str, Tensor] = {}
        for stage in stages:
            for name, tensor in stage.state_dict().items():
                assert torch.equal(tensor, expected[name]), name
                found[name] = tensor
        assert found.keys() == expected.keys()


def test_names_are_those_that_checkpoints_have_always_had() -> None:
    names = {kind: list(build_model(config, shapes).state_dict()) for kind, (config, shapes, _) in MODELS.items()}
    assert names["tabular"] == ["embeddings.0.weight", "embeddings.1.weight", "layers.0.weight", "layers.0.bias", "layers.2.weight",
                                "layers.2.bias", "layers.4.weight", "layers.4.bias"]
    assert names["image"][:2] == ["stem.weight", "stem.bias"]
    assert names["image"][-4:] == ["norm.weight", "norm.bias", "head.weight", "head.bias"]
    assert {"stages.0.norm1.weight", "stages.1.weight", "stages.2.conv2.bias"} <= set(names["image"])
    assert names["text"][:3] == ["token_embedding.weight", "position_embedding.weight", "blocks.0.norm1.weight"]
    assert names["text"][-2:] == ["norm.weight", "norm.bias"]
    assert names["text, untied"][-1] == "head.weight"


def test_weights_depend_on_the_seed_and_the_part_s_name_and_on_nothing_else() -> None:
    first, again, other = (seeded(partial(nn.Linear, 3, 3), seed=seed, name="blocks.0").get_parameter("weight") for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, seeded(partial(nn.Linear, 3, 3), seed=1, name="blocks.1").get_parameter("weight"))
    state = torch.random.get_rng_state()
    seeded(partial(nn.Linear, 3, 3), seed=1, name="blocks.0")
    assert torch.equal(state, torch.random.get_rng_state())  # torch's own generator is left alone
    torch.default_generator.manual_seed(int.from_bytes(hashlib.sha256(b"1/blocks.0").digest()[:8], "big") >> 1)
    assert torch.equal(first, nn.Linear(3, 3).weight)  # the rule, in plain torch


def test_a_stage_builds_its_own_parts_only() -> None:
    built: list[str] = []

    def make(name: str) -> nn.Module:
        built.append(name)
        return nn.Linear(2, 2)

    blocks = BlockList(tuple(Block(name, {name: partial(make, name)}, writes=("logits",) if name == "c" else ("x",)) for name in "abc"),
                       inputs=("x",))
    stage = StageModule(blocks, first=1, last=2, seed=0)
    assert built == ["b"]
    assert list(stage.state_dict()) == ["b.weight", "b.bias"]
    WholeModel(blocks)
    assert built == ["b", "a", "b", "c"]


def test_a_tied_part_is_one_in_a_run_and_named_where_a_cut_makes_copies() -> None:
    config, shapes, inputs = MODELS["text"]
    blocks = list_blocks(config, shapes)
    assert [block.name for block in blocks] == ["embedding", "blocks.0", "blocks.1", "head"]
    assert blocks.shared_parts((0, 4)) == {}
    assert blocks.shared_parts((0, 2, 4)) == {"token_embedding": (0, 1)}
    assert blocks.shared_parts((0, 1, 2, 3, 4)) == {"token_embedding": (0, 3)}
    assert list_blocks(*MODELS["text, untied"][:2]).shared_parts((0, 2, 4)) == {}
    stages, outputs = _run_stages(blocks, (0, 2, 4), 5, dict(inputs))
    assert [stage.parameters_of(["token_embedding"]) for stage in stages] == [["token_embedding.weight"]] * 2
    # The gradients of the copies add up to that of the one parameter of the whole model.
    outputs["logits"].pow(2).sum().backward()
    whole = WholeModel(blocks, seed=5)
    whole(**inputs).pow(2).sum().backward()
    copies = [stage.get_parameter("token_embedding.weight").grad for stage in stages]
    expected = whole.get_parameter("token_embedding.weight").grad
    assert copies[0] is not None and copies[1] is not None and expected is not None  # noqa: PT018 - for the type checker
    torch.testing.assert_close(copies[0] + copies[1], expected)
    assert not torch.allclose(copies[1], expected)  # control: one copy's alone is not


def _split(parts: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, Tensor]:
    return parts[0](x), x


def _join(parts: Sequence[nn.Module], skip: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"logits": parts[0](x) + skip}


def _skipping() -> BlockList:
    #   x -> [ down ] -x-> [ middle ] -x-> [ up ] -> logits
    #           +------------- skip ----------^
    linear = partial(nn.Linear, 3, 3)
    return BlockList((Block("down", {"down": linear}, run=_split, writes=("x", "skip")), Block("middle", {"middle": linear}),
                      Block("up", {"up": linear}, run=_join, reads=("skip", "x"), writes=("logits",))), inputs=("x",))


def test_a_skip_connection_travels_on_until_its_reader() -> None:
    blocks = _skipping()
    assert [blocks.crossing(border) for border in range(4)] == [("x",), ("x", "skip"), ("skip", "x"), ("logits",)]
    x = torch.randn(2, 3)
    _, outputs = _run_stages(blocks, (0, 1, 2, 3), 9, {"x": x})
    torch.testing.assert_close(outputs["logits"], WholeModel(blocks, seed=9)(x), rtol=0, atol=0)


def test_an_input_that_a_later_block_reads_crosses_the_borders_before_it() -> None:
    blocks = BlockList((Block("a", {}), Block("b", {}, run=lambda _, x, mask: x * mask, reads=("x", "mask"), writes=("logits",))),
                       inputs=("x", "mask"))
    assert [blocks.crossing(border) for border in range(3)] == [("x", "mask"), ("x", "mask"), ("logits",)]


@pytest.mark.parametrize(("blocks", "message"), [
    pytest.param([Block("a", {}, reads=("y",), writes=("logits",))], r"y: a block reads it .* no earlier block writes it",
                 id="read, never written"),
    pytest.param([Block("a", {})], "logits: .* name it in the writes of a block", id="no outputs"),
    pytest.param([Block("a", {}), Block("a", {}, writes=("logits",))], "several blocks are named a", id="one name twice"),
    pytest.param([], "no blocks", id="no blocks"),
])
def test_a_list_that_cannot_run_is_refused_when_it_is_made(blocks: list[Block], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BlockList(tuple(blocks), inputs=("x",))


@pytest.mark.parametrize("run", [
    pytest.param(lambda _, x: (x, x), id="too many"),
    pytest.param(lambda _, x: {"x": x}, id="another name"),
])
def test_a_block_that_returns_something_else_than_it_says_is_named(run: object) -> None:
    blocks = BlockList((Block("odd", {}, run=run, writes=("logits",)),), inputs=("x",))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"block odd returned .* but it writes logits"):
        WholeModel(blocks)(torch.ones(1))


def test_a_plain_sequence_is_cut_as_it_is_and_keeps_its_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    blocks = sequential_blocks(model, reads="numeric")
    stages, outputs = _run_stages(blocks, (0, 2, 3), 0, {"numeric": torch.ones(1, 4)})
    torch.testing.assert_close(outputs["logits"], model(torch.ones(1, 4)), rtol=0, atol=0)
    assert [name for stage in stages for name in stage.state_dict()] == list(model.state_dict())
    assert blocks_of(WholeModel(text_blocks(7, 4, width=4, layers=1, heads=1, tied=True)))[0].name == "embedding"
    assert len(blocks_of(model)) == 3


def test_a_sequence_sketched_without_memory_is_made_where_it_is_needed() -> None:
    with torch.device("meta"):
        sketch = nn.Sequential(nn.Linear(4, 10 ** 9), nn.BatchNorm1d(8), nn.Sequential(nn.Linear(8, 2)))  # the first: 16 GB
    blocks = sequential_blocks(sketch)
    first, again = (StageModule(blocks, first=1, last=3, seed=seed) for seed in (4, 4))
    assert next(iter(first.state_dict())) == "1.weight"
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
        assert torch.isfinite(tensor).all()
    assert first({"x": torch.ones(3, 8)})["logits"].shape == (3, 2)
    assert part_elements(blocks[0]) == {"0": 5 * 10 ** 9}


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def test_what_cannot_be_cut_is_refused_with_what_to_do() -> None:
    linear = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="modules 0, 2 of the sequence share parameters"):
        sequential_blocks(nn.Sequential(linear, nn.ReLU(), linear))
    with pytest.raises(ConfigError, match=r"Bilinear cannot be cut into stages: it lists no blocks; make it a torch.nn.Sequential"):
        blocks_of(nn.Bilinear(1, 1, 1))
    with torch.device("meta"):
        sketch = nn.Sequential(_Scale())
    with pytest.raises(ConfigError, match=r"0 \(_Scale\) is on the meta device and has no reset_parameters"):
        StageModule(sequential_blocks(sketch), seed=0)


@pytest.mark.parametrize("name", ["last", "last.0"])
def test_a_part_with_the_name_of_something_else_is_refused_by_that_name(name: str) -> None:
    blocks = BlockList((Block("end", {name: partial(nn.Linear, 2, 2)}, writes=("logits",)),), inputs=("x",))
    with pytest.raises(ConfigError, match=f"called {name}, and the module that holds it has something else called last; give it another"):
        WholeModel(blocks)


def test_sizes_are_known_without_building() -> None:
    blocks = list_blocks(TextModelConfig(kind="text", width=1024, layers=2, heads=2), Shapes(length=6, vocabulary=10 ** 6))
    assert part_elements(blocks[-1]) == {"norm": 2048, "token_embedding": 1024 * 10 ** 6}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_survives_pickling(kind: str) -> None:
    config, shapes, inputs = MODELS[kind]
    model = build_model(config, shapes)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(**inputs), model(**inputs), rtol=0, atol=0)
