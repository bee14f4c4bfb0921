"""One replica of a stage split over several ranks: whole losses, predictions and states from the shards' parts.

With a single shard all of this changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from torch import Tensor

from sparkring.conf.schema import TrainConfig
from sparkring.models.blocks import StageModule
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.parallel.collectives.sets import SetReducer
from sparkring.pipelines.parallel.tensor_parallel.shard_spec import ShardSpec
from sparkring.pipelines.parallel.tensor_parallel.sharding import shard_specs, whole_tensor
from sparkring.pipelines.parallel.tensor_parallel.vocabulary import (
    masked_token_loss_sum,
    next_token_loss_sum,
    vocabulary_split,
    whole_logits,
)
from sparkring.pipelines.training.job.tasks import LossSum, loss_of
from sparkring.pipelines.training.strategies.state import parameter_of


class Shards:
    """The shards of this rank's replica of its stage, its own included."""

    def __init__(self, reducer: SetReducer, chunks: Iterable[StageModule], manifest: Manifest, train: TrainConfig) -> None:
        self._reducer = reducer
        self.splits: Mapping[str, ShardSpec] = {name: split for chunk in chunks for name, split in shard_specs(chunk).items()}
        """How each sharded parameter is cut."""
        tokens = manifest.preprocessing.tokens
        self._vocabulary = vocabulary_split(tokens.vocabulary, reducer.size) if tokens and reducer.size > 1 else None
        self.loss_sum: LossSum = loss_of(manifest.task, manifest.preprocessing, train)
        """The loss from this shard's outputs of the last stage; the same value on all shards."""
        if tokens and self._vocabulary:
            of_task = masked_token_loss_sum if tokens.mask else next_token_loss_sum
            self.loss_sum = partial(of_task, pad_id=tokens.pad_id, split=self._vocabulary, reducer=reducer)

    @property
    def first(self) -> bool:
        """Whether this is the first shard, which reports for all."""
        return self._reducer.index == 0

    def whole_outputs(self, logits: Tensor) -> Tensor:
        """The last stage's outputs, joined from all shards' parts; all shards call it."""
        return whole_logits(logits, split=self._vocabulary, reducer=self._reducer) if self._vocabulary else logits

    def whole_size(self, name: str, parameter: Tensor) -> int:
        """The number of elements of a parameter in the whole model."""
        split = self.splits.get(name)
        return parameter.numel() if split is None else parameter.numel() // parameter.shape[split.dim] * split.whole_size

    def whole_sizes(self, tensors: Mapping[str, Tensor]) -> dict[str, int]:
        """The number of elements of each tensor of a state in the whole model."""
        return {name: self.whole_size(parameter_of(name), tensor) if tensor.dim() else 1 for name, tensor in tensors.items()}

    def whole_state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a state, whole, joined from the shards' slices; all shards call it with the same names in the same order."""
        return {name: self._whole(name, tensor) for name, tensor in tensors.items()}

    def cut(self, parameter: str, tensor: Tensor) -> Tensor:
        """This shard's slice of a whole tensor."""
        return self.splits[parameter].take(tensor, self._reducer.index) if parameter in self.splits and tensor.dim() else tensor

    def _whole(self, name: str, tensor: Tensor) -> Tensor:
        split = self.splits.get(parameter_of(name))
        return whole_tensor(tensor, split, self._reducer, name) if split is not None and tensor.dim() else tensor
