"""Networks of torchvision, timm and transformers, adapted. Each library is imported here, when a network of its is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import nn

from sparkring.errors import ConfigError
from sparkring.extras import extras_named
from sparkring.models.adapting.adapt import adapt
from sparkring.models.blocks import BlockList

if TYPE_CHECKING:
    from sparkring.models.build import Shapes


def alexnet(shapes: Shapes, *, dropout: float = 0.0, **options: Any) -> BlockList:
    """AlexNet, torchvision's."""
    return torchvision_network("alexnet", shapes, dropout=dropout, **options)


def resnet18(shapes: Shapes, *, dropout: float = 0.0, **options: Any) -> BlockList:
    """ResNet-18, torchvision's."""
    return torchvision_network("resnet18", shapes, dropout=dropout, **options)


def resnet50(shapes: Shapes, *, dropout: float = 0.0, **options: Any) -> BlockList:
    """ResNet-50, torchvision's."""
    return torchvision_network("resnet50", shapes, dropout=dropout, **options)


def torchvision_network(name: str, shapes: Shapes, *, dropout: float = 0.0, **options: Any) -> BlockList:
    """List the blocks of a network of ``torchvision.models``; options are its function's arguments."""
    with extras_named():
        from torchvision import models
    _require_untrained(options, "weights")
    return _adapted(name, partial(models.get_model, name, **{"num_classes": shapes.num_outputs, **options}), shapes, dropout=dropout)


def timm_network(name: str, shapes: Shapes, *, dropout: float = 0.0, **options: Any) -> BlockList:
    """List the blocks of a network of timm; options are arguments of ``timm.create_model``."""
    with extras_named():
        import timm
    _require_untrained(options, "pretrained")
    sizes = {"num_classes": shapes.num_outputs, **({"in_chans": shapes.image[0]} if shapes.image else {})}
    return _adapted(name, partial(timm.create_model, name, **{**sizes, **options}), shapes, dropout=dropout)


def transformers_network(name: str, shapes: Shapes, *, dropout: float = 0.0, **options: Any) -> BlockList:
    """List the blocks of a model class of transformers; options are fields of its config.

    The fields for the vocabulary, the length, the image and the number of classes follow from the rows. Models that could
    keep a cache of earlier tokens keep none.
    """
    with extras_named():
        import transformers
    kind = getattr(transformers, name)
    if not hasattr(kind, "config_class"):
        raise ConfigError(f"transformers.{name} is no model class; name one, e.g. transformers.BertForMaskedLM.")
    fields = kind.config_class()
    known = {field: value for field, value in _sizes(shapes).items() if hasattr(fields, field)}
    return _adapted(name, partial(_of_config, kind, {**known, **options}, shapes.length), shapes, dropout=dropout)


def _adapted(name: str, make: Callable[[], nn.Module], shapes: Shapes, *, dropout: float) -> BlockList:
    try:
        return adapt(make, shapes, dropout=dropout)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} cannot be built: {error}; give it arguments that it takes as model.options.") from error


def _sizes(shapes: Shapes) -> dict[str, Any]:
    if shapes.image is not None:
        return {"num_labels": shapes.num_outputs, "num_channels": shapes.image[0], "image_size": shapes.image[1]}
    return {"vocab_size": shapes.vocabulary, "max_position_embeddings": shapes.length, "pad_token_id": shapes.pad_id, "use_cache": False}


def _of_config(kind: Any, fields: Mapping[str, Any], length: int) -> nn.Module:
    """Build a model for rows of so many tokens."""
    network: nn.Module = kind(kind.config_class(**fields))
    for path, layer in network.named_modules():  # RoBERTa and its kin number positions from the one after their padding token's id
        if path.endswith("position_embeddings") and isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
            needed = layer.padding_idx + 1 + length
            if layer.num_embeddings < needed:
                raise ConfigError(f"{kind.__name__} numbers positions from {layer.padding_idx + 1} on, so rows of {length} tokens need "
                                  f"{needed}, and it has {layer.num_embeddings}; set model.options: {{max_position_embeddings: {needed}}}.")
    return network


def _require_untrained(options: Mapping[str, Any], key: str) -> None:
    if options.get(key):
        raise ConfigError(f"model.options.{key}={options[key]} would fetch weights on every rank; give them as a file: model.weights.")


def _torchvision_names() -> Sequence[str]:
    from torchvision import models

    names: list[str] = models.list_models(module=models)
    return names


def _timm_names() -> Sequence[str]:
    import timm

    names: list[str] = timm.list_models()
    return names


def _transformers_names() -> Sequence[str]:
    import transformers

    return [name for name in dir(transformers) if "For" in name]  # their classes are imported on use, each with its module


_BUILDS: MappingProxyType[str, Callable[..., BlockList]] = MappingProxyType({
    "torchvision": torchvision_network, "timm": timm_network, "transformers": transformers_network})
_NAMES = MappingProxyType({"torchvision": _torchvision_names, "timm": _timm_names, "transformers": _transformers_names})


def network_of(library: str, name: str) -> Callable[..., BlockList] | None:
    """The function that lists the blocks of a library's network; None if it has none of that name.

    Raises:
        EnvironmentProblem: the library is not installed.
    """
    return partial(_BUILDS[library], name) if name in names_in(library) else None


def names_in(library: str) -> Sequence[str]:
    """The names of a library's networks.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    with extras_named():
        return _NAMES[library]()
