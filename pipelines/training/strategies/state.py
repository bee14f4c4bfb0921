"""Everything that training changes, as named tensors: the model's parameters and buffers, and the optimizer's state.

Keyed by the model's own parameter names, so that a state does not depend on how a layout numbers them. The bytes are
safetensors: nothing is pickled or unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from sparkring.errors import CheckpointDamaged
from sparkring.pipelines.training.strategies.sharded_optimizer import owners

MODEL, OPTIMIZER = "model/", "optimizer/"


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors on any device, and in any order in memory (channels last), as safetensors bytes. Tied ones are written under each name."""
    held: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        held[name] = plain.clone() if place in memory else plain  # safetensors refuses tensors that share memory
        memory.add(place)
    return save(held)


def pack_state(modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> bytes:
    """The state as safetensors bytes: ``model/<name>`` and ``optimizer/<name>/<key>``."""
    return pack(dict(named_tensors(modules, optimizer)))


def dealt(sizes: Mapping[str, int], place: int, places: int) -> list[str]:
    """The tensors that one of several ranks saves, of tensors that all of them hold; each rank saves about equally
    much.

    Args:
        sizes: Elements of each whole tensor, by name.
        place: This rank's, below ``places``.
        places: Ranks that hold them.
    """
    owner = owners(sizes, places)
    return [name for name in sizes if owner[name] == place]


def weights_of(state: Iterable[bytes]) -> dict[str, Tensor]:
    """The model's parameters and buffers in the parts of a state, by name."""
    return {name.removeprefix(MODEL): tensor for part in state for name, tensor in _tensors_of(part).items() if name.startswith(MODEL)}


def parameter_of(name: str) -> str:
    """The parameter or buffer that a tensor of a state belongs to."""
    return name.removeprefix(OPTIMIZER).rpartition("/")[0] if name.startswith(OPTIMIZER) else name.removeprefix(MODEL)


def unpack_state(state: Iterable[bytes], modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer, *, partly: bool = False,
                 cut: Callable[[str, Tensor], Tensor] = lambda _, tensor: tensor) -> None:
    """Put a packed state into a model, or its parts, and an optimizer of the same kind.

    Args:
        state: Its parts as safetensors, in any order; tensors that several parts hold are equal. Tensors of other
            modules are not kept in memory.
        modules: The parts of the model that hold the optimizer's parameters.
        optimizer: The optimizer of their parameters.
        partly: Whether the state may hold more than these modules and this optimizer have.
        cut: (parameter, whole tensor) -> the slice that these modules hold.
    Raises:
        CheckpointDamaged: the tensors' names or shapes are not those of the modules.
    """
    parameters = {name: parameter for module in modules for name, parameter in module.named_parameters()}
    optimized = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    own = [module.state_dict().keys() for module in modules]

    def held(name: str) -> bool:
        if name.startswith(MODEL):
            return not partly or any(name.removeprefix(MODEL) in names for names in own)
        return name.startswith(OPTIMIZER) and (not partly or parameters.get(parameter_of(name)) in optimized)

    def taken(part: bytes) -> dict[str, Tensor]:
        try:
            return {name: cut(parameter_of(name), tensor) for name, tensor in _tensors_of(part).items() if held(name)}
        except RuntimeError as error:
            raise _does_not_fit(error) from None

    tensors: dict[str, Tensor] = {}
    for part in state:  # one at a time: together they may not fit into memory
        tensors |= taken(part)
    weights = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    optimizer.state.clear()  # the packed state may be older, and lack later entries
    try:
        for module, names in zip(modules, own, strict=True):
            module.load_state_dict({name: tensor for name, tensor in weights.items() if name in names} if partly else weights)
        for name, tensor in tensors.items():
            if name.startswith(OPTIMIZER):
                parameter = parameters[parameter_of(name)]
                key = name.rpartition("/")[2]
                optimizer.state[parameter][key] = tensor.to(parameter.device)  # counters too: the fused kernels want them there
    except (RuntimeError, KeyError) as error:
        raise _does_not_fit(error) from None


def take_weights(weights: Iterable[bytes], modules: Sequence[nn.Module], *,
                 cut: Callable[[str, Tensor], Tensor] = lambda _, tensor: tensor) -> None:
    """Put given parameters and buffers into a model, or its parts; what is not given stays as it is.

    Args:
        weights: Whole tensors by the model's own names, as safetensors in any number of parts.
        modules: The model, or the parts that this rank holds.
        cut: (parameter, whole tensor) -> the slice that these modules hold.
    """
    own = [module.state_dict() for module in modules]  # shares the modules' memory
    for part in weights:
        for name, tensor in _tensors_of(part).items():
            for held in own:
                if name in held:
                    held[name].copy_(cut(name, tensor))


def _does_not_fit(error: Exception) -> CheckpointDamaged:
    return CheckpointDamaged(f"the saved state does not fit the model: {' '.join(str(error).split())}; it was saved by another model. Use "
                             "another workspace.")


def _tensors_of(part: bytes) -> dict[str, Tensor]:
    try:
        return load(part)
    except SafetensorError as error:
        raise CheckpointDamaged(f"a part of the state is not a safetensors file: {error}; use an earlier checkpoint.") from None


def named_tensors(modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state by name, in a fixed order, where they lie: a rank copies from its device only those that it saves."""
    for module in modules:
        for name, tensor in module.state_dict().items():
            yield MODEL + name, tensor.detach()
        for name, parameter in module.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"{OPTIMIZER}{name}/{key}", value.detach()
