"""Continue texts with the trained decoder: in this process, or through its stages if ``train.parallel`` cuts it.

    sparkring generate local/python-text --prompt "def main("

A decoder that is not cut needs no Spark. A cut one runs as a ring with one rank a stage, and no rank builds the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.pipelines.data.dataset.preprocessing import TokensFeature
from sparkring.pipelines.data.order.row_order import default_lanes
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.job.model_files import ModelCard, load_card, load_weights, model_from_bytes
from sparkring.spark_jobs.auto_layout import with_planned_layout
from sparkring.spark_jobs.etl.encoding.tokens import NUM_BYTES, TokenEncoding
from sparkring.spark_jobs.run.place import with_existing_run
from sparkring.spark_jobs.spark.progress import SILENT, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkring.models.decoding import Sampling


@dataclass(frozen=True)
class Continuation:
    """The continuation of one text."""

    prompt: str
    text: str
    """The text after the prompt."""
    tokens: int
    """Number of new tokens, with the one that ends the document."""
    ended: bool
    """Whether the document ended by itself."""


def generate(config: ConfigLike, prompts: Sequence[str], *, max_tokens: int = 200, temperature: float = 0.0, seed: int = 0,
             spark: SparkSession | None = None, progress: Progress = SILENT, **keys: Any) -> list[Continuation]:
    """Continue texts with the model of the run of ``config``. The same call gives the same texts in any layout.

    Args:
        config: What ``load_config`` takes; names the run (see ``run/place.py``); its ``train.parallel`` decides whether the model is cut.
        prompts: The beginnings of the texts; an empty one begins a document.
        max_tokens: The most new tokens of a text.
        temperature: 0 takes the likeliest token, 1 draws with the predicted probabilities.
        seed: Determines the draws.
        spark: The session to start a ring in; default the active one, or one made from ``config.spark``.
        progress: Where to report.
        keys: Keys of the config that replace those of ``config``, e.g. ``workspace="runs/x"``.
    Returns:
        One continuation for each prompt.
    Raises:
        ConfigError: the run has no trained model, the model is not for texts, the config names another tokenizer, or a number is out
            of range.
    """
    from sparkring.models.decoding import Sampling

    config = config_of_job(generate, config, keys)
    if max_tokens < 1 or temperature < 0:
        raise ConfigError(f"max_tokens={max_tokens}, temperature={temperature:g} cannot be used; give at least one token and no "
                          "temperature below 0.")
    config = with_existing_run(config, progress=progress)
    card = load_card(config.run_url)
    tokens = card.preprocessing.tokens
    if tokens is None or card.model.kind != "text":
        raise ConfigError(f"the model of {config.run_url} is of kind {card.model.kind}, which cannot continue texts; name a run of a model "
                          "of kind text.")
    if tokens.mask:
        raise ConfigError(f"the model of {config.run_url} finds masked tokens, and a token that it adds would have nothing on its right; "
                          "name a run of the task next_token.")
    encoding = _token_encoding(config, tokens)
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed)
    begun = [ids.tolist() for ids in encoding.encode([prompt.encode() for prompt in prompts])]
    with progress.stage("generate") as bar:
        bar.update(0, text=f"{len(prompts)} texts")
        laid = with_planned_layout(config, open_store(config.run_url))
        if laid.train.parallel.cuts_the_model:
            added = _by_stages(laid, card, begun, sampling, spark)
        else:
            added = _alone(config, card, begun, sampling)
    return [Continuation(prompt, _decoded([token for token in new if token < encoding.size], encoding), len(new),
                         new[-1] == encoding.end_id) for prompt, new in zip(prompts, added, strict=True)]


def _alone(config: Config, card: ModelCard, prompts: list[list[int]], sampling: Sampling) -> list[list[int]]:
    from sparkring.models.decoding import Texts, decode_locally
    from sparkring.pipelines.training.generate_rank import token_ids

    assert card.preprocessing.tokens is not None
    model = model_from_bytes(card, load_weights(config.run_url, card))
    return decode_locally(Texts(prompts, token_ids(card.preprocessing.tokens, model.block_list), sampling), model)


def _by_stages(config: Config, card: ModelCard, prompts: list[list[int]], sampling: Sampling,
               spark: SparkSession | None) -> list[list[int]]:
    from sparkring.pipelines.training.generate_rank import GenerateJob, decoding_config, generate_rank
    from sparkring.pipelines.training.job.job import TrainJob
    from sparkring.spark_jobs.ring import run_ring
    from sparkring.spark_jobs.spark.session import spark_session

    laid = decoding_config(config, card.model)
    job = GenerateJob(
        train=TrainJob(config=laid, dataset_url=card.dataset_url, dataset_version=card.dataset_version, run_url=config.run_url,
                       generation=0, lanes=default_lanes(1)),
        prompts=tuple(map(tuple, prompts)), max_tokens=sampling.max_tokens, temperature=sampling.temperature, seed=sampling.seed)
    session = spark_session(config.spark, app_name=f"sparkring {config.name}", given=spark)
    added: list[list[int]] = run_ring(generate_rank, job.model_dump(mode="json"), num_ranks=laid.train.num_ranks, spark=session,
                                      config=laid.train.ring)[0]
    return added


def _token_encoding(config: Config, tokens: TokensFeature) -> TokenEncoding:
    """The encoding of texts as tokens that the model was trained with."""
    if tokens.tokenizer_sha256 is None:
        return TokenEncoding()
    named = config.prepare.features.tokens
    encoding = TokenEncoding.load(named) if named else TokenEncoding()
    if encoding.sha256 != tokens.tokenizer_sha256:
        raise ConfigError(f"the model of {config.run_url} was trained with the tokenizer {tokens.tokenizer_sha256[:16]}, but "
                          f"prepare.features.tokens.tokenizer names {(encoding.sha256 or 'none')[:16]}; name the file of the first.")
    return encoding


def _decoded(ids: list[int], encoding: TokenEncoding) -> str:
    if encoding.tokenizer is None:
        assert max(ids, default=0) < NUM_BYTES
        return bytes(ids).decode("utf-8", errors="replace")
    from tokenizers import Tokenizer

    text: str = Tokenizer.from_str(encoding.tokenizer).decode(ids, skip_special_tokens=False)
    return text
