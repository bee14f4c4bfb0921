"""Generating text with a decoder in stages: each rank holds its stages' blocks, and all know the tokens so far.

    window --> [stage 0] --> [stage 1] --> [stage 2] --> logits --> next tokens
                   ^ '-- next --> ^                                     |
                   '----------------------- next -----------------------'

The next tokens go to the first stage and from there along the stages, by the transport that carries activations. All shards of
the last stage have the same logits and choose the same tokens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict
from safetensors.torch import load
from torch import Tensor

from sparkring.conf.schema import Config, ModelConfig
from sparkring.models.blocks import BlockList
from sparkring.models.build import list_blocks, without_dropout
from sparkring.models.decoding import Sampling, Texts, TokenIds, decode
from sparkring.models.inputs import TOKENS
from sparkring.pipelines.data.dataset.preprocessing import TokensFeature
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Mesh
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.training.job.job import TrainJob, layout_of
from sparkring.pipelines.training.job.model_files import load_card, load_weights
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.pipelines.training.rows import RankRows
from sparkring.pipelines.training.strategies.stages import Stages, evaluating, only


class GenerateJob(BaseModel):
    """The driver's order to the ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: TrainJob
    """The run's job, with a layout for generating and the network of the run's card."""
    prompts: tuple[tuple[int, ...], ...]
    """Tokens of each prompt."""
    max_tokens: int
    temperature: float
    seed: int


def decoding_config(config: Config, model: ModelConfig) -> Config:
    """The config for generating: one replica of each stage and one micro-batch, since a token depends on the one before.

    Args:
        config: The run's config.
        model: The trained network.
    """
    parallel = config.train.parallel
    one_each = {"replicas": [1] * len(config.train.replicas), "shards": parallel.shards, "micro_batches": 1,
                "transport": parallel.transport, "dynamic_shapes": True,
                "cut": list(parallel.cut) if parallel.chunks_per_stage == 1 else []}
    kept = "float32" if config.train.precision == "bf16" else config.train.precision
    changes = {"parallel": one_each, "num_ranks": len(config.train.replicas) * parallel.shards, "lanes": None, "precision": kept}
    train = config.train.changed(**changes)
    return config.changed(train=train, model=without_dropout(model))


def token_ids(tokens: TokensFeature, blocks: BlockList) -> TokenIds:
    """The length and the special tokens of a dataset's rows, for a decoder of these blocks."""
    return TokenIds(length=tokens.length, end_id=tokens.end_id, pad_id=tokens.pad_id, whole_rows=blocks.whole_rows)


def generate_rank(context: RankContext, document: dict[str, Any]) -> list[list[int]]:
    """Generate texts on one rank; the ring launcher starts it.

    Args:
        context: This rank's place.
        document: A ``GenerateJob``.
    Returns:
        The new tokens of each text, the same on all ranks.
    """
    job = GenerateJob.model_validate(document)
    version, config = Dataset(job.train.dataset_url).open(job.train.dataset_version), job.train.config
    layout, manifest = layout_of(config, version.manifest), version.manifest
    assert layout is not None, "a decoder that is not cut generates without a ring"
    sets = layout.process_sets(context.hosts, wraps=True)
    with Communicator(context, extra_sets=sets, messages_by_horovod=layout.messages_by_horovod) as communicator:
        rows = RankRows(job.train, version, layout, context)
        tokens = manifest.preprocessing.tokens
        assert tokens is not None, "only datasets of tokens generate"
        blocks = list_blocks(config.model, shapes_of(manifest.task, manifest.preprocessing))
        stages = Stages(blocks, layout, communicator, manifest, inputs=rows.inputs(), train=config.train,
                        more_edges=next_token_edges(layout.mesh))
        stages.load(load(load_weights(job.train.run_url, load_card(job.train.run_url))))
        sampling = Sampling(max_tokens=job.max_tokens, temperature=job.temperature, seed=job.seed)
        with evaluating(stages.chunks.values()):
            passed = _Passed(stages, rank=context.rank)
            added = decode(Texts(job.prompts, token_ids(tokens, blocks), sampling), forward=passed.forward, share=passed.share)
        stages.close()
    return added


def next_token_edges(mesh: Mesh) -> list[Edge]:
    """The edges of the next tokens: from the last stage to the first and on to the last but one, between equal shards."""
    return [Edge(mesh.rank(one, 0, shard), mesh.rank(other, 0, shard), "next")
            for shard in range(mesh.shards) for one, other in pairwise(_way(mesh)) if mesh.num_stages > 1]


class _Passed:
    """One rank's part in a forward pass, and in passing on the next tokens."""

    def __init__(self, stages: Stages, *, rank: int) -> None:
        self._stages, self._device = stages, next(next(iter(stages.chunks.values())).parameters()).device
        edges = next_token_edges(stages.layout.mesh)
        self._inward = [edge for edge in edges if edge.target == rank]
        self._outward = [edge for edge in edges if edge.source == rank]

    def forward(self, window_BT: Tensor) -> Tensor | None:
        """Pass the window through the stages; returns the logits on ranks of the last stage, None on the others."""
        passes = self._stages.executor.predict(lambda _: {TOKENS: window_BT.to(self._device)})
        logits = [self._stages.shards.whole_outputs(only(outputs)) for _, outputs in passes]
        return logits[0] if logits else None

    def share(self, chosen_B: Tensor | None) -> Tensor:
        """Pass on the tokens that the last stage chose; returns them on every rank."""
        for edge in self._inward:
            (chosen_B,) = self._stages.transport.receive(edge, 0)
        assert chosen_B is not None
        for edge in self._outward:
            self._stages.transport.send(edge, 0, [chosen_B])
        return chosen_B


def _way(mesh: Mesh) -> list[int]:
    return [mesh.num_stages - 1, *range(mesh.num_stages - 1)]
