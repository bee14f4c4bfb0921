"""Networks of other libraries become blocks that compute the same, with exact layers; what ranks would compute differently is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkring.errors import ConfigError, LayoutRefused
from sparkring.models.adapting.adapt import adapt
from sparkring.models.batch_norm import StepBatchNorm, finish_steps, normalises_rows
from sparkring.models.blocks import LOGITS, BlockList, StageModule, WholeModel
from sparkring.models.build import Shapes
from sparkring.models.inputs import IMAGE, ROW_SEEDS, TOKENS

IMAGES = Shapes(image=(3, 8, 8), num_outputs=5)
LARGE = Shapes(image=(3, 32, 32), num_outputs=5)
TEXTS = Shapes(length=6, vocabulary=11)
Make = Callable[[], nn.Module]


class Small(nn.Module):
    """Skip connection, batch normalisation, dropout, and one activation that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.layers = nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)), nn.ReLU(inplace=True))
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(x)))
        x = self.relu(x + self.layers(x))
        logits: Tensor = self.head(self.drop(functional.avg_pool2d(x, 2).view(x.shape[0], -1)))
        return logits


class Tied(nn.Module):
    """One matrix embeds the tokens and makes the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(11, 4), nn.Linear(4, 4), nn.Linear(4, 11)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.mix(self.embed(tokens)))
        return logits


class OneLayer(nn.Module):
    """A network around one function."""

    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn, self.inner, self.head = fn, nn.Identity(), nn.Linear(192, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.fn(self.inner(x)).flatten(1))
        return logits


class TwoOutputs(OneLayer):
    """Returns its logits twice, as networks with auxiliary classifiers do while they train."""

    def __init__(self) -> None:
        super().__init__(torch.relu)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        return logits, logits


class Counting(nn.Module):
    """Keeps a statistic."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.head = nn.Linear(192, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        logits: Tensor = self.head(x.flatten(1))
        return logits


class Scaled(nn.Module):
    """A parameter of its own, beside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head, self.drop = nn.Parameter(torch.ones(1)), nn.Linear(192, 5), nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.drop(x.flatten(1))) * self.scale
        return logits


class ScaledFlat(Scaled):
    """Fails where there are no rows."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.view(x.shape[0], -1)) * self.scale
        return logits


def resnet18() -> nn.Module:
    return pytest.importorskip("torchvision").models.resnet18(num_classes=5)


def googlenet() -> nn.Module:
    make = pytest.importorskip("torchvision").models.googlenet
    return make(num_classes=5, aux_logits=False, init_weights=False)


def efficientnet() -> nn.Module:
    return pytest.importorskip("timm").create_model("efficientnet_b0", num_classes=5)


def bert(attention_dropout: float = 0.0) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    config = transformers.BertConfig(vocab_size=11, max_position_embeddings=6, attention_probs_dropout_prob=attention_dropout, **sizes)
    return transformers.BertForMaskedLM(config)


def _batch(shapes: Shapes, rows: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if shapes.image is None:
        return torch.randint(shapes.vocabulary, (rows, shapes.length), generator=generator)
    return torch.randn(rows, *shapes.image, generator=generator, dtype=torch.float64)


def _original(make: Make, model: nn.Module, prefix: str = "") -> nn.Module:
    """The library's own network with the weights of ``model``, without dropout."""
    network = make().double()
    state = {name.removeprefix(prefix): tensor for name, tensor in model.state_dict().items()}
    missing = network.load_state_dict(state, strict=False)
    tied = {id(parameter) for name, parameter in network.named_parameters(remove_duplicate=False) if name in state}
    assert not missing.unexpected_keys
    assert all(id(network.get_parameter(name)) in tied for name in missing.missing_keys)
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return network


def _logits(output: object) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits  # type: ignore[attr-defined]


def _loss(logits: Tensor) -> Tensor:
    return (logits * torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)).sum()


def _cut(blocks: BlockList, bounds: Sequence[int]) -> list[StageModule]:
    return [StageModule(blocks, first=first, last=last, seed=1).double() for first, last in pairwise(bounds)]


@pytest.mark.parametrize(("make", "shapes", "num_blocks"), [
    pytest.param(Small, IMAGES, 4, id="a network of one's own"),
    pytest.param(Tied, TEXTS, 3, id="tied weights"),
    pytest.param(resnet18, LARGE, 11, id="torchvision's ResNet-18"),
    pytest.param(googlenet, LARGE, 58, id="torchvision's GoogLeNet, with parallel branches"),
    pytest.param(efficientnet, LARGE, 21, id="timm's EfficientNet, whose normalisation has an activation"),
    pytest.param(bert, TEXTS, 4, id="transformers' BERT, with tied weights")])
def test_an_adapted_network_equals_its_original(make: Make, shapes: Shapes, num_blocks: int) -> None:
    blocks = adapt(make, shapes)
    assert (len(blocks), blocks.uncut) == (num_blocks, "")
    model = WholeModel(blocks, seed=1).double()
    original, x = _original(make, model), _batch(shapes)
    logits, expected = model(x), _logits(original(x))
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    _loss(logits).backward()
    _loss(expected).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert gradients.keys() == {name for name, parameter in original.named_parameters() if parameter.grad is not None}
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, original.get_parameter(name).grad, rtol=1e-9, atol=1e-12)
    finish_steps([model], lambda _: None)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, original.get_buffer(name))
    torch.testing.assert_close(model.eval()(x), _logits(original.eval()(x)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("make", "shapes"), [
    pytest.param(Small, IMAGES, id="a network of one's own"), pytest.param(Tied, TEXTS, id="tied weights"),
    pytest.param(bert, TEXTS, id="BERT"), pytest.param(googlenet, LARGE, id="branches")])
def test_any_cut_computes_the_same_and_draws_the_same_weights(make: Make, shapes: Shapes) -> None:
    blocks = adapt(make, shapes)
    whole, x = WholeModel(blocks, seed=1).double(), _batch(shapes)
    expected, last = whole(x), len(blocks)
    for bounds in ((0, 1, last), (0, last - 1, last), range(last + 1)):
        stages = _cut(blocks, bounds)
        tensors = {blocks.inputs[0]: x}
        for stage in stages:
            assert set(tensors) >= set(blocks.crossing(stage.first))
            tensors = stage(tensors)
            for name, tensor in stage.state_dict().items():
                assert torch.equal(tensor, whole.state_dict()[name])
        torch.testing.assert_close(tensors[LOGITS], expected, rtol=0, atol=0)


def test_another_seed_draws_other_weights_and_a_layer_s_do_not_depend_on_what_else_is_built() -> None:
    blocks = adapt(Small, IMAGES)
    one, other = (WholeModel(blocks, seed=seed).state_dict() for seed in (1, 2))
    assert not torch.equal(one["conv.weight"], other["conv.weight"])
    torch.rand(7)
    alone = StageModule(adapt(Small, IMAGES), first=len(blocks) - 1, seed=1).state_dict()
    assert alone.keys() == {"head.weight", "head.bias"}
    assert torch.equal(alone["head.weight"], one["head.weight"])
    bound = 1 / 64 ** 0.5  # as nn.Linear draws them: uniform up to 1 / sqrt(inputs)
    assert bound * 0.9 < one["head.weight"].abs().max() <= bound


def test_adapting_leaves_torch_s_generator_as_it_is() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    adapt(Small, IMAGES)
    assert torch.equal(torch.rand(1), expected)


def test_dropout_of_an_adapted_network_is_by_row_in_any_order_and_again_in_a_second_pass() -> None:
    assert adapt(Small, IMAGES, dropout=0.5).inputs == (IMAGE, ROW_SEEDS)
    seeds = torch.arange(6) * 977
    x = _batch(IMAGES, rows=6)
    model = WholeModel(adapt(partial(OneDropout, 1), IMAGES, dropout=0.5), seed=1).double()
    dropped = model(x, seeds)
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    torch.testing.assert_close(model(x[order], seeds[order]), dropped[order])
    torch.testing.assert_close(model(x, seeds), dropped)
    assert not torch.allclose(model(x, seeds + 1), dropped), "the control: other seeds drop others"
    assert torch.equal(model.eval()(x, seeds), model.eval()(x, seeds + 1)), "nothing is dropped after training"


class Skipping(nn.Module):
    """A skip connection around dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.head = nn.Dropout(), nn.Linear(192, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        logits: Tensor = self.head(x + self.drop(x))
        return logits


class OneDropout(nn.Module):
    """Calls one dropout several times."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls, self.drop, self.head = calls, nn.Dropout(), nn.Linear(192, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for _ in range(self.calls):
            x = self.drop(x)
        logits: Tensor = self.head(x)
        return logits


def test_each_call_of_a_dropout_drops_others() -> None:
    ones = Shapes(image=(3, 8, 8), num_outputs=5)
    kept = []
    for calls in (1, 2):
        model = WholeModel(adapt(partial(OneDropout, calls), ones, dropout=0.5), seed=1)
        x = torch.ones(200, 3, 8, 8, requires_grad=True)
        model(x, torch.arange(200) * 977).sum().backward()
        assert x.grad is not None
        kept.append((x.grad != 0).float().mean().item())
    assert kept == pytest.approx([0.5, 0.25], abs=0.01)  # with one mask for both calls it would be a half again


@pytest.mark.parametrize(("make", "shapes", "message"), [
    pytest.param(partial(OneLayer, functional.dropout), IMAGES, "the network draws random numbers", id="functional dropout"),
    pytest.param(partial(OneLayer, lambda x: x * torch.rand(1)), IMAGES, "draws random numbers", id="noise"),
    pytest.param(Counting, IMAGES, r"the network \(Counting\) changes its buffer seen", id="statistics of its own"),
    pytest.param(partial(OneLayer, nn.Dropout2d()), IMAGES, "fn draws random numbers", id="dropout of whole channels"),
    pytest.param(partial(OneLayer, nn.BatchNorm2d(3, affine=False)), IMAGES,
                 r"fn \(BatchNorm2d\) changes its buffer fn.num_batches_tracked", id="batch norm without weights"),
    pytest.param(partial(OneLayer, lambda x: x * x.mean().item()), IMAGES, "cannot be run on tensors without memory", id="values")])
def test_what_ranks_would_compute_differently_is_refused_with_its_name(make: Make, shapes: Shapes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        adapt(make, shapes)


def test_dropout_of_attention_weights_is_refused_where_the_library_draws_it() -> None:
    with pytest.raises(ConfigError, match=r"attention.self draws random numbers while it trains \(dropout of attention weights\)"):
        adapt(partial(bert, 0.1), TEXTS, dropout=0.1)
    adapt(partial(bert, 0.0), TEXTS, dropout=0.1)  # the control: what is 0 stays 0


def test_a_tensor_that_dropout_leaves_alone_is_still_what_another_layer_reads() -> None:
    """A skip around a dropout, recorded where nothing is dropped, must not read what is dropped later."""
    x = torch.ones(50, 3, 8, 8, requires_grad=True)
    model = WholeModel(adapt(Skipping, IMAGES, dropout=0.5), seed=1)
    nn.init.ones_(model.get_parameter("head.weight"))
    model(x, torch.arange(50)).sum().backward()
    assert x.grad is not None
    assert set(x.grad.flatten().tolist()) == {5.0, 15.0}  # 5 outputs of x itself, and of twice x where it is kept


@pytest.mark.parametrize(("make", "shapes", "message"), [
    pytest.param(TwoOutputs, IMAGES, "it returns a tuple; let it return them alone", id="two outputs"),
    pytest.param(Small, replace(IMAGES, num_outputs=6), r"shape \(2, 5\) for two rows, and \(rows, outputs\) are \(2, 6\)", id="classes"),
    pytest.param(Tied, replace(TEXTS, vocabulary=12), r"and \(rows, length, vocabulary\) are \(2, \d+, 12\)", id="tokens")])
def test_a_network_that_does_not_return_the_rows_logits_is_refused(make: Make, shapes: Shapes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        adapt(make, shapes)


def test_dropout_for_a_network_without_any_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.dropout=0.1, but the network has no torch.nn.Dropout that drops; leave"):
        adapt(Tied, TEXTS, dropout=0.1)


@pytest.mark.parametrize(("make", "reason"), [
    pytest.param(Scaled, "takes a parameter or a constant that belongs to no layer", id="a parameter beside the layers"),
    pytest.param(partial(OneLayer, lambda x: x.clone().add_(1)), "add_ changes a tensor in place", id="a change in place"),
    pytest.param(partial(OneLayer, lambda x: x if len(x) == 2 else x * 2), "its steps depend on the number of rows", id="rows")])
def test_a_network_that_cannot_be_cut_is_one_block_that_says_why(make: Make, reason: str) -> None:
    blocks = adapt(make, IMAGES)
    assert [block.name for block in blocks] == ["network"]
    assert reason in blocks.uncut
    model, x = WholeModel(blocks, seed=1).double(), _batch(IMAGES)
    torch.testing.assert_close(model(x), _original(make, model, prefix="network.")(x))


def test_a_network_of_one_block_drops_by_row_too() -> None:
    model = WholeModel(adapt(Scaled, IMAGES, dropout=0.5), seed=1).double()
    x, seeds = _batch(IMAGES), torch.arange(4) * 977
    torch.testing.assert_close(model(x.flip(0), seeds.flip(0)).flip(0), model(x, seeds))
    assert not torch.allclose(model(x, seeds), model(x, seeds + 1))


def test_asking_for_stages_of_a_network_that_cannot_be_cut_says_why() -> None:
    from sparkring.conf.schema import TrainConfig
    from sparkring.pipelines.training.job.layout import Layout

    train = TrainConfig.model_validate({"num_ranks": 2, "parallel": {"replicas": [1, 1]}})
    with pytest.raises(LayoutRefused, match=r"cannot be cut into 2 runs of blocks: .*belongs to no layer; train it by data parallelism"):
        Layout.of(train, adapt(Scaled, IMAGES))


def test_batch_norm_is_noticed_before_a_ring_starts() -> None:
    from sparkring.conf.schema import TrainConfig
    from sparkring.pipelines.training.job.layout import require_micro_batches

    train = TrainConfig.model_validate({"num_ranks": 2})
    assert normalises_rows(adapt(Small, IMAGES))
    with pytest.raises(ConfigError, match=r"batch normalisation is over the rows of a micro-batch; set train.parallel.micro_batches"):
        require_micro_batches(train, adapt(Small, IMAGES))
    local = TrainConfig.model_validate({"num_ranks": 2, "strategy": "local_sgd"})
    with pytest.raises(ConfigError, match=r"the network normalises over all rows of a micro-batch, which needs train\.strategy: exact"):
        require_micro_batches(local, adapt(Small, IMAGES))
    require_micro_batches(train, adapt(Tied, TEXTS))  # the controls: none, and a number of micro-batches
    require_micro_batches(TrainConfig.model_validate({"num_ranks": 2, "parallel": {"micro_batches": 4}}), adapt(Small, IMAGES))


@pytest.mark.parametrize(("make", "shapes"), [
    pytest.param(Small, IMAGES, id="blocks"), pytest.param(ScaledFlat, IMAGES, id="one block"), pytest.param(bert, TEXTS, id="BERT")])
def test_a_micro_batch_of_no_rows_changes_nothing(make: Make, shapes: Shapes) -> None:
    model = WholeModel(adapt(make, shapes), seed=1).double()
    with pytest.raises(RuntimeError, match="ambiguous"):  # the control
        _logits(make().double()(_batch(shapes, rows=0)))
    logits = model(_batch(shapes, rows=0))
    assert logits.shape[0] == 0
    logits.sum().backward()
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert not any(module.sums.any() for module in model.modules() if isinstance(module, StepBatchNorm))
    assert all(module.training for module in model.modules())


def test_rows_of_another_shape_than_the_recorded_one_are_refused() -> None:
    model = WholeModel(adapt(Tied, TEXTS), seed=1)
    with pytest.raises(ConfigError, match=r"adapted for rows of shape \(6,\) and got \(5,\)"):
        model(torch.zeros(2, 5, dtype=torch.int64))
    assert model(**{TOKENS: torch.zeros(1, 6, dtype=torch.int64)}).shape == (1, 6, 11)


def test_the_layers_inside_are_the_exact_ones() -> None:
    kinds = {type(module).__name__ for module in WholeModel(adapt(Small, IMAGES, dropout=0.1)).modules()}
    assert {"StepBatchNorm", "CalledDropout"} <= kinds
    assert not kinds & {"BatchNorm2d", "Dropout"}
    assert isinstance(WholeModel(adapt(Small, IMAGES)).norm, StepBatchNorm)
