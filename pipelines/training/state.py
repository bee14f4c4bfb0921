"""All that training changes, as named tensors: the model's parameters and buffers, and the optimizer's state of each.

Keyed by the model's own parameter names, so that a state does not depend on how a layout numbers them. The bytes are
safetensors: nothing is pickled or unpickled.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from sparkring.errors import CheckpointDamaged

MODEL, OPTIMIZER = "model/", "optimizer/"


def pack_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> bytes:
    """The state as safetensors bytes: ``model/<name>`` and ``optimizer/<name>/<key>``."""
    return save(dict(_named_tensors(model, optimizer)))


def unpack_state(data: bytes, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a packed state into a model and an optimizer of the same kind.

    Raises:
        CheckpointDamaged: the tensors' names or shapes are not those of the model.
    """
    tensors = load(data)
    parameters = dict(model.named_parameters())
    weights = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    try:
        model.load_state_dict(weights)
        for name, tensor in tensors.items():
            if name.startswith(OPTIMIZER):
                owner, _, key = name.removeprefix(OPTIMIZER).rpartition("/")
                parameter = parameters[owner]
                optimizer.state[parameter][key] = tensor.to(parameter.device)  # counters too: the fused kernels want them there
    except (RuntimeError, KeyError) as error:
        raise CheckpointDamaged(f"the saved state does not fit the model: {' '.join(str(error).split())}; "
                                "it was saved by another model. Use another workspace.") from None


def _named_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in model.state_dict().items():
        yield MODEL + name, tensor.detach().cpu().contiguous()
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield f"{OPTIMIZER}{name}/{key}", value.detach().cpu().contiguous()
