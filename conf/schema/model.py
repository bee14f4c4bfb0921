"""The networks: ``model``, told apart by ``kind``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from sparkring.conf.schema.section import Positive, Section

Dropout = Annotated[float, Field(ge=0, lt=1)]


class _NetworkConfig(Section):
    """What all kinds have: a network of one's own in the place of the shipped one."""

    network: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """A network of your own for such rows, by the name of its function (docs/how-to/networks.md); null: the shipped one, described here."""
    options: dict[str, JsonValue] = {}
    """What that function takes beside the shapes of the rows, e.g. ``{width: 256}``."""
    dropout: Dropout = 0.0

    @model_validator(mode="after")
    def _one_network_is_described(self) -> Self:
        if self.network is None and self.options:
            raise ValueError(f"options={self.options} are for a network of your own; name it: network=...")
        shipped = [name for name, field in type(self).model_fields.items()
                   if name not in ("kind", "network", "options", "dropout") and getattr(self, name) != field.default]
        if self.network is not None and shipped:
            raise ValueError(f"{', '.join(shipped)} describes the shipped network, not {self.network}; give what yours takes as options")
        return self


class TabularModelConfig(_NetworkConfig):
    """The network for tables: an embedding for each category column, then a multilayer perceptron."""

    kind: Literal["tabular"] = "tabular"
    hidden: tuple[Positive, ...] = (256, 128, 64)
    """Widths of the hidden layers."""
    max_embedding: Positive = 32
    """Largest width of an embedding; smaller vocabularies get smaller ones."""
    dropout: Dropout = 0.0
    """Share of each hidden layer's outputs that is dropped in training: the same ones of a row on any ring, in any layout."""


class ImageModelConfig(_NetworkConfig):
    """The network for images: a small residual convnet."""

    kind: Literal["image"]
    widths: tuple[Positive, ...] = (32, 64, 128)
    """Channels of each stage; every stage but the first halves height and width."""
    norm: Literal["group", "batch"] = "group"
    """Normalise by groups of channels of a row, or over the rows of a micro-batch; the latter needs ``train.parallel.micro_batches``."""
    dropout: Dropout = 0.0
    """Share dropped in training between the two convolutions of a residual block: the same of a row on any ring, in any layout."""


class TextModelConfig(_NetworkConfig):
    """The network for tokens: a causal transformer decoder."""

    kind: Literal["text"]
    width: Positive = 128
    """Of a token's vector."""
    layers: Positive = 4
    heads: Positive = 4
    tied: bool = True
    """Use the embedding as the output matrix too."""
    dropout: Dropout = 0.0
    """Share dropped in training of the embedding and of what attention and perceptron add to it; attention's weights are left alone.
    The same of a row on any ring, in any layout."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width={self.width} is no multiple of heads={self.heads}")
        return self


def _model_kind(value: object) -> object:
    """A model that does not say its kind is the one for tables."""
    return value.get("kind", "tabular") if isinstance(value, dict) else getattr(value, "kind", None)


ModelConfig = Annotated[
    Annotated[TabularModelConfig, Tag("tabular")] | Annotated[ImageModelConfig, Tag("image")] | Annotated[TextModelConfig, Tag("text")],
    Discriminator(_model_kind, custom_error_type="kind", custom_error_message="there is no such kind; give tabular, image or text")]
"""Any of the networks, told apart by ``kind``."""
