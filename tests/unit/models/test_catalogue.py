"""Networks by name: their published numbers of parameters and operations, linear regression, and names that do not exist."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sparkring.conf.schema.model import ImageModelConfig, TabularModelConfig, TextModelConfig
from sparkring.errors import ConfigError, EnvironmentProblem
from sparkring.models import networks
from sparkring.models.blocks import BlockList, WholeModel, part_elements
from sparkring.models.build import Shapes, build_model, list_blocks
from tests.support import seams

IMAGENET, DIGITS = Shapes(image=(3, 224, 224), num_outputs=1000), Shapes(image=(1, 28, 28), num_outputs=10)
CIFAR = Shapes(image=(3, 32, 32), num_outputs=10)
WORD_PIECES, BYTE_PAIRS = Shapes(length=512, vocabulary=30522, masked=True), Shapes(length=1024, vocabulary=50257)
PAIRS = Shapes(num_numeric=2, num_outputs=2)


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.NETWORK_BUILDS, {})


def _blocks(name: str, shapes: Shapes) -> BlockList:
    if name in ("alexnet", "resnet18", "resnet50"):
        pytest.importorskip("torchvision")
    if name.startswith("bert"):
        pytest.importorskip("transformers")
    kind = TextModelConfig(kind="text", network=name) if shapes.length else ImageModelConfig(kind="image", network=name)
    return list_blocks(kind, shapes)


def _parameters(blocks: BlockList) -> int:
    return sum({name: count for block in blocks for name, count in part_elements(block).items()}.values())


def _multiplications(blocks: BlockList, shapes: Shapes) -> float:
    """Multiply-and-adds of one row."""
    assert shapes.image is not None
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        WholeModel(blocks, seed=1).eval()(torch.empty(1, *shapes.image))
    return counter.get_total_flops() / 2


@pytest.mark.parametrize(("name", "shapes", "published"), [
    # LeCun et al. 1998, section II.B: 156 + 12 + 1,516 + 32 + 48,120 + 10,164 = 60,000. Ours has no weights in the subsampling (-44), a
    # third layer that sees all maps (16 * (6 * 25 + 1) = 2,416 in place of 1,516) and a linear output (850).
    pytest.param("lenet5", DIGITS, 60_000 - 44 + 900 + 850, id="LeNet-5"),
    # https://pytorch.org/vision/stable/models.html, num_params
    pytest.param("alexnet", IMAGENET, 61_100_840, id="AlexNet"),
    pytest.param("resnet18", IMAGENET, 11_689_512, id="ResNet-18"),
    pytest.param("resnet50", IMAGENET, 25_557_032, id="ResNet-50"),
    # Devlin et al. 2019: 110M and 340M with the pooler; with the head for masked tokens in its place these are Hugging Face's counts
    pytest.param("bert_base", WORD_PIECES, 109_514_298, id="BERT base"),
    pytest.param("bert_large", WORD_PIECES, 335_174_458, id="BERT large"),
    # Radford et al. 2019, table 2, says 117M, which its authors corrected to 124M (github.com/openai/gpt-2)
    pytest.param("gpt2_small", BYTE_PAIRS, 124_439_808, id="GPT-2 small"),
    pytest.param("gpt2_medium", BYTE_PAIRS, 354_823_168, id="GPT-2 medium")])
def test_networks_have_as_many_parameters_as_published(name: str, shapes: Shapes, published: int) -> None:
    assert _parameters(_blocks(name, shapes)) == published


@pytest.mark.parametrize(("name", "shapes", "published"), [
    # LeCun et al. 1998: connections without those of the biases: 117,600 + 240,000 (all maps of C3) + 48,000 + 10,080 + 840
    pytest.param("lenet5", DIGITS, 416_520, id="LeNet-5"),
    # https://pytorch.org/vision/stable/models.html, GFLOPS: multiply-and-adds
    pytest.param("alexnet", IMAGENET, 0.714e9, id="AlexNet"),
    pytest.param("resnet18", IMAGENET, 1.814e9, id="ResNet-18"),
    pytest.param("resnet50", IMAGENET, 4.089e9, id="ResNet-50")])
def test_networks_have_as_many_operations_as_published(name: str, shapes: Shapes, published: float) -> None:
    assert _multiplications(_blocks(name, shapes), shapes) == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize(("name", "shapes"), [
    ("mlp", DIGITS), ("lenet5", CIFAR), ("alexnet_cifar", CIFAR), ("inception", CIFAR), ("linear", PAIRS), ("two_three_two", PAIRS)])
def test_small_networks_return_logits_and_can_be_cut(name: str, shapes: Shapes) -> None:
    kind = ImageModelConfig(kind="image", network=name) if shapes.image else TabularModelConfig(network=name)
    model = build_model(kind, shapes)
    x = torch.randn(3, *shapes.image) if shapes.image else torch.randn(3, 2)
    assert model(x).shape == (3, shapes.num_outputs)
    assert model.block_list.uncut == ""
    assert len(model.block_list) >= {"linear": 1, "two_three_two": 2, "mlp": 3, "inception": 12}.get(name, 5)


def test_the_branches_of_inception_are_blocks_and_several_tensors_cross_between_them() -> None:
    blocks = _blocks("inception", CIFAR)
    assert "inception1.three.1" in [block.name for block in blocks]
    assert max(len(blocks.crossing(border)) for border in range(len(blocks))) == 4


def test_linear_regression_on_plain_tensors_as_a_module_and_solved_are_the_same() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([2.0, -1, 0.5], dtype=torch.float64) + 3 + 0.1 * torch.randn(40, generator=generator, dtype=torch.float64)
    ones = torch.cat([x, torch.ones(40, 1, dtype=torch.float64)], dim=1)
    model = build_model(TabularModelConfig(network="linear"), Shapes(num_numeric=3)).double()
    module = list(model.parameters())
    for parameter in module:
        nn.init.zeros_(parameter)
    plain = torch.zeros(4, dtype=torch.float64)
    for _ in range(500):
        by_hand = ones.T @ (ones @ plain - y) / 40
        gradients = torch.autograd.grad((0.5 * (model(x) - y).square()).mean(), module)
        torch.testing.assert_close(torch.cat([gradient.flatten() for gradient in gradients]), by_hand, rtol=0, atol=1e-12)
        plain -= 0.5 * by_hand
        for parameter, gradient in zip(module, gradients, strict=True):
            parameter.data -= 0.5 * gradient
    torch.testing.assert_close(plain, torch.linalg.lstsq(ones, y).solution, rtol=0, atol=1e-8)


def test_a_library_s_network_is_named_after_a_dot_and_takes_its_options() -> None:
    pytest.importorskip("torchvision")
    config = ImageModelConfig(kind="image", network="torchvision.resnet18", options={"width_per_group": 64})
    assert _parameters(list_blocks(config, CIFAR)) == 11_181_642


def test_a_library_s_trained_weights_have_the_names_and_shapes_that_model_weights_asks_for() -> None:
    from sparkring.pipelines.training.job.given_weights import Kind, fit_of

    theirs = pytest.importorskip("torchvision").models.resnet18(num_classes=10).state_dict()
    ours = build_model(ImageModelConfig(kind="image", network="resnet18"), CIFAR).state_dict()
    given, network = ({name: Kind(tuple(tensor.shape), tensor.is_floating_point()) for name, tensor in state.items()}
                      for state in (theirs, ours))
    assert fit_of(given, network).findings == []


def test_a_registered_network_of_the_same_name_wins() -> None:
    def lenet5(shapes: Shapes) -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, shapes.num_outputs))

    networks.network(lenet5)
    assert _parameters(_blocks("lenet5", DIGITS)) == 7850


@pytest.mark.parametrize(("network", "options", "message"), [
    pytest.param("lenet", {}, r"no network of that name is registered; did you mean 'lenet5'\?", id="a word"),
    pytest.param("torchvision.resnet51", {}, r"did you mean 'torchvision.resnet\d+'\?", id="of torchvision"),
    pytest.param("torchvision.resnet18", {"depth": 3}, r"resnet18 cannot be built: .*depth.*; give it arguments",
                 id="an option"),
    pytest.param("torchvision.resnet18", {"weights": "DEFAULT"}, r"would fetch weights on every rank; give them as a file: model.weights",
                 id="weights"),
    pytest.param("bert_base", {}, r"takes rows of tokens", id="tokens"),
    pytest.param("linear", {}, "takes rows with numbers", id="numbers")])
def test_what_the_catalogue_does_not_have_is_refused(network: str, options: dict[str, object], message: str) -> None:
    if "." in network:
        pytest.importorskip("torchvision")
    with pytest.raises(ConfigError, match=message):
        list_blocks(ImageModelConfig.model_validate({"kind": "image", "network": network, "options": options}), CIFAR)


@pytest.mark.parametrize(("network", "masked", "message"), [
    pytest.param("bert_base", False, "sees the tokens that next_token asks for; set prepare.task: masked_tokens", id="both sides"),
    pytest.param("gpt2_small", True, "cannot use both sides of a masked one; set prepare.task: next_token", id="one side")])
def test_a_language_model_is_refused_for_the_task_that_it_is_not_made_for(network: str, *, masked: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list_blocks(TextModelConfig(kind="text", network=network), Shapes(length=8, vocabulary=50, masked=masked))


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "attention_probs_dropout_prob": 0.0}


def test_a_transformer_knows_the_token_that_fills_rows_up() -> None:
    pytest.importorskip("transformers")
    model = build_model(TextModelConfig(kind="text", network="transformers.BertForMaskedLM", options=SMALL),
                        Shapes(length=8, vocabulary=50, masked=True, pad_id=49))
    (tokens,) = [module for module in model.modules() if isinstance(module, nn.Embedding) and module.num_embeddings == 50]
    assert tokens.padding_idx == 49


def test_a_transformer_whose_positions_do_not_suffice_is_refused_with_their_number() -> None:
    pytest.importorskip("transformers")
    shapes = Shapes(length=8, vocabulary=50, masked=True, pad_id=2)
    kind = {"kind": "text", "network": "transformers.RobertaForMaskedLM"}
    with pytest.raises(ConfigError, match=r"numbers positions from 3 on, so rows of 8 tokens need 11, and it has 8; set model.options: \{"):
        list_blocks(TextModelConfig.model_validate(kind | {"options": SMALL}), shapes)
    model = build_model(TextModelConfig.model_validate(kind | {"options": SMALL | {"max_position_embeddings": 11}}), shapes)
    assert model(tokens=torch.arange(8)[None]).shape == (1, 8, 50)


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr(seams.EXTRAS_FIND_SPEC, lambda _: None)
    with pytest.raises(EnvironmentProblem, match=r"timm is not installed for .*; run .*'sparkring\[networks\]'"):
        list_blocks(ImageModelConfig(kind="image", network="timm.resnet18"), CIFAR)


def test_logits_of_one_output_have_no_axis() -> None:
    logits: Tensor = build_model(TabularModelConfig(network="linear"), Shapes(num_numeric=3))(torch.zeros(4, 3))
    assert logits.shape == (4,)
