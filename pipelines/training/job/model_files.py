"""A trained model on disk: safetensors for the weights, JSON for everything else. Nothing is pickled or unpickled.

    <run>/model/weights-<sha256>.safetensors     written first
    <run>/model/model.json                       the card, which names the weights by hash: the commit
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sparkring.conf.schema import ModelConfig, Task
from sparkring.errors import CheckpointDamaged, ConfigError, DatasetError
from sparkring.models.blocks import WholeModel
from sparkring.models.build import build_model, without_dropout
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.versions import BRING_BACK, Dataset, DatasetVersion
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.job.tasks import shapes_of

CARD = "model/model.json"


class ModelCard(BaseModel):
    """A model's description: its network, its data, and its held-out metrics."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), ser_json_inf_nan="constants")

    format: Literal[1] = 1
    name: str
    model: ModelConfig
    task: Task = "binary"
    """The task that it was trained for."""
    preprocessing: Preprocessing
    """The one definition of how source columns become inputs."""
    dataset_url: str
    dataset_version: int
    fold: int | None = None
    """Of a dataset version in folds: the one that it was validated on."""
    content_id: str
    epoch: int
    """Epochs of training behind these weights."""
    step: int
    """Optimizer steps behind these weights."""
    validation: dict[str, float]
    """The held-out metrics by which these weights were chosen."""
    code_version: str
    weights_sha256: str = ""


def save_model(run_url: str, weights: Mapping[str, Tensor], card: ModelCard) -> ModelCard:
    """Write weights, then commit the card; returns the card with the weights' hash.

    Args:
        run_url: Folder of the run.
        weights: The trained network's parameters and buffers by name; stored in their own precision.
        card: Facts about it; ``weights_sha256`` is filled in here.
    """
    store = open_store(run_url)
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
    committed = card.model_copy(update={"weights_sha256": hashlib.sha256(data).hexdigest()})
    store.put_pieces(weights_name(committed), [data])  # large files go to S3 in parts: one PUT takes 5 GB at most
    store.put(CARD, committed.model_dump_json(indent=1).encode())
    return committed


def load_model(run_url: str) -> tuple[WholeModel, ModelCard]:
    """Read the model of a run, check its hash, and return it in evaluation mode with its card.

    Raises:
        ConfigError: the run has no trained model yet.
        CheckpointDamaged: card or weights are not what was committed.
    """
    card = load_card(run_url)
    data = load_weights(run_url, card)
    return model_from_bytes(card, data), card


def load_card(run_url: str) -> ModelCard:
    """Read the card of a run's model."""
    store = open_store(run_url)
    try:
        return ModelCard.model_validate_json(store.read(CARD))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{run_url} holds no trained model; run `sparkring train` with this config first.") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise CheckpointDamaged(f"{store.path(CARD)} is not a model card: {first['msg']}; train again.") from None


def load_weights(run_url: str, card: ModelCard) -> bytes:
    """Read the weights that ``card`` names and check their hash."""
    store = open_store(run_url)
    name = weights_name(card)
    try:
        data = store.read(name)
    except FileNotFoundError:
        raise CheckpointDamaged(f"{store.path(name)} is missing, but model.json names it; train again.") from None
    found = hashlib.sha256(data).hexdigest()
    if found != card.weights_sha256:
        raise CheckpointDamaged(f"{store.path(name)} has SHA-256 {found}, model.json says {card.weights_sha256}; train again.")
    return data


def model_from_bytes(card: ModelCard, weights: bytes) -> WholeModel:
    """Build the card's network around checked weights, in evaluation mode (what a Spark executor does).

    Raises:
        CheckpointDamaged: there are no weights, or they belong to another network.
    """
    model = build_model(without_dropout(card.model), shapes_of(card.task, card.preprocessing))
    try:
        tensors = load(weights)
        model.to(next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()))
        model.load_state_dict(tensors)
    except (SafetensorError, RuntimeError, TypeError, StopIteration) as error:
        raise CheckpointDamaged(f"the weights of model {card.name} are not of the network that its card describes: "
                                f"{' '.join(str(error).split()) or 'there are none'}; train again.") from None
    return model.eval()


def dataset_of(card: ModelCard) -> DatasetVersion:
    """The dataset version that a model was trained on.

    Raises:
        DatasetVersionNotFound: it is gone.
        DatasetError: the version has different content now.
    """
    version = Dataset(card.dataset_url).open(card.dataset_version, fold=card.fold, moved=BRING_BACK)
    if version.manifest.content_id != card.content_id:
        raise DatasetError(f"version {card.dataset_version} of {card.dataset_url} holds {version.manifest.content_id[:16]}, but the model "
                           f"was trained on {card.content_id[:16]}; train again, or bring that dataset back.")
    return version


def weights_name(card: ModelCard) -> str:
    """The name of the weights that ``card`` describes, in the run's folder."""
    return f"model/weights-{card.weights_sha256[:16]}.safetensors"
