"""Language models in the sizes of their papers: BERT from transformers, GPT-2 as our own decoder.

Sources: Devlin et al., "BERT: Pre-training of deep bidirectional transformers", NAACL 2019; Radford et al., "Language
models are unsupervised multitask learners", 2019. Attention weights are kept, where the papers drop a tenth of them: in
a library's network that would be drawn by each rank for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkring.errors import ConfigError
from sparkring.models.blocks import BlockList
from sparkring.models.catalogue.libraries import transformers_network
from sparkring.models.text import text_blocks

if TYPE_CHECKING:
    from sparkring.models.build import Shapes


def bert_base(shapes: Shapes, *, dropout: float = 0.0, **options: Any) -> BlockList:
    """BERT with 12 layers of width 768, which sees the tokens on both sides: for masked tokens."""
    return _bert(shapes, dropout, options, width=768, layers=12, heads=12)


def bert_large(shapes: Shapes, *, dropout: float = 0.0, **options: Any) -> BlockList:
    """BERT with 24 layers of width 1024, which sees the tokens on both sides: for masked tokens."""
    return _bert(shapes, dropout, options, width=1024, layers=24, heads=16)


def gpt2_small(shapes: Shapes, *, dropout: float = 0.0) -> BlockList:
    """GPT-2 with 12 layers of width 768."""
    return _gpt2(shapes, dropout, width=768, layers=12, heads=12)


def gpt2_medium(shapes: Shapes, *, dropout: float = 0.0) -> BlockList:
    """GPT-2 with 24 layers of width 1024."""
    return _gpt2(shapes, dropout, width=1024, layers=24, heads=16)


def _bert(shapes: Shapes, dropout: float, options: Mapping[str, Any], *, width: int, layers: int, heads: int) -> BlockList:
    _require_tokens("bert", shapes, masked=True)
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * width}
    return transformers_network("BertForMaskedLM", shapes, dropout=dropout, **{**sizes, "attention_probs_dropout_prob": 0.0, **options})


def _gpt2(shapes: Shapes, dropout: float, *, width: int, layers: int, heads: int) -> BlockList:
    _require_tokens("gpt2", shapes, masked=False)
    return text_blocks(shapes.vocabulary, shapes.length, width=width, layers=layers, heads=heads, tied=True, dropout=dropout)


def _require_tokens(name: str, shapes: Shapes, *, masked: bool) -> None:
    if not shapes.length:
        raise ConfigError(f"model.network={name}... takes rows of tokens; name their column in prepare.features.tokens.")
    if masked != shapes.masked:
        raise ConfigError(f"model.network={name}... sees " + (
            "the tokens that next_token asks for; set prepare.task: masked_tokens." if masked else
            "no token on the right, so it cannot use both sides of a masked one; set prepare.task: next_token."))
