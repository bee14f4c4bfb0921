"""The networks: ``model``, told apart by ``kind``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator

from sparkring.conf.schema.base.section import LocalPath, Positive, Section, Sha256, one_spelling

Dropout = Annotated[float, Field(ge=0, lt=1)]
Norm = Literal["group", "batch"]
ABOUT_WEIGHTS = ("weights", "weights_sha256", "weights_partial")
"""The keys that say what a network starts from, and nothing about its layers."""


class _NetworkConfig(Section):
    """The keys of all kinds: your own network in place of the shipped one."""

    network: Annotated[str, Field(pattern=r"^((torchvision|timm|transformers)\.)?[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Name of the function that builds your own network, or of a network of the catalogue, e.g. ``resnet50`` or
    ``timm.resnet26`` (docs/how-to/networks.md); null: the shipped network, described here."""
    options: dict[str, JsonValue] = {}
    """Arguments of that network beside the shapes of the rows, e.g. ``{width: 256}``."""
    dropout: Dropout = 0.0
    """Share dropped in training."""
    weights: LocalPath | None = None
    """Weights to start from: a .safetensors file, or the folder of a run, whose model they then are. Names and shapes of their tensors
    must be the network's. Null: random weights."""
    weights_sha256: Sha256 | None = None
    """SHA-256 that the file of ``weights`` must have. ``train`` fills it in: a run resumes with this file only."""
    weights_partial: bool = False
    """Start from those of the file's tensors that fit, and from random weights elsewhere."""

    @field_validator("weights")
    @classmethod
    def _one_spelling(cls, place: str | None) -> str | None:
        return None if place is None else one_spelling(place)

    @model_validator(mode="after")
    def _weights_are_given(self) -> Self:
        if self.weights is None and (self.weights_partial or self.weights_sha256):
            raise ValueError("model.weights_partial and model.weights_sha256 are about given weights; name their file in model.weights")
        return self

    @model_validator(mode="after")
    def _one_network_is_described(self) -> Self:
        if self.network is None and self.options:
            raise ValueError(f"model.options={self.options} are for your own network; name it with model.network=...")
        shipped = [f"model.{name}" for name, field in type(self).model_fields.items()
                   if name not in ("kind", "network", "options", "dropout", *ABOUT_WEIGHTS) and getattr(self, name) != field.default]
        if self.network is not None and shipped:
            raise ValueError(f"{', '.join(shipped)} describes the shipped network, not {self.network}; give your arguments as "
                             "model.options")
        return self


class TabularModelConfig(_NetworkConfig):
    """The network for tables: an embedding for each category column, then a multilayer perceptron."""

    kind: Literal["tabular"] = "tabular"
    hidden: tuple[Positive, ...] = (256, 128, 64)
    """Widths of the hidden layers."""
    max_embedding: Positive = 32
    """Largest width of an embedding; smaller vocabularies get smaller ones."""
    dropout: Dropout = 0.0
    """Share of each hidden layer's outputs dropped in training; for a row always the same ones, on any ring and in
    any layout."""


class ImageModelConfig(_NetworkConfig):
    """The network for images: a small residual convnet."""

    kind: Literal["image"]
    widths: tuple[Positive, ...] = (32, 64, 128)
    """Channels of each stage; every stage but the first halves height and width."""
    norm: Norm = "group"
    """Normalise over groups of channels of a row, or over the rows of a micro-batch; batch needs
    ``train.parallel.micro_batches``."""
    dropout: Dropout = 0.0
    """Share dropped in training between the two convolutions of a residual block; for a row always the same, on any
    ring and in any layout."""


class TextModelConfig(_NetworkConfig):
    """The network for tokens: a transformer; causal unless the task is masked_tokens."""

    kind: Literal["text"]
    width: Positive = 128
    """Length of a token's vector."""
    layers: Positive = 4
    """Blocks of attention and perceptron."""
    heads: Positive = 4
    """Attention heads of a layer; they divide ``width``."""
    tied: bool = True
    """Use the embedding as the output matrix too."""
    dropout: Dropout = 0.0
    """Share dropped in training of the embedding and of the outputs of attention and perceptron; attention weights
    are kept. For a row always the same, on any ring and in any layout."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"model.width={self.width} is not a multiple of model.heads={self.heads}; "
                             f"set model.width to {-(-self.width // self.heads) * self.heads}, or another number of heads")
        return self


def _model_kind(value: object) -> object:
    """The ``kind`` of a model; default tabular."""
    return value.get("kind", "tabular") if isinstance(value, dict) else getattr(value, "kind", None)


ModelConfig = Annotated[
    Annotated[TabularModelConfig, Tag("tabular")] | Annotated[ImageModelConfig, Tag("image")] | Annotated[TextModelConfig, Tag("text")],
    Discriminator(_model_kind, custom_error_type="kind", custom_error_message="unknown kind; give tabular, image or text")]
"""Any of the networks, told apart by ``kind``."""
