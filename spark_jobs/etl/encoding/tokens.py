"""Cut documents into rows of equally many tokens: encode them, add an end id to each, join them, and cut.

    documents of one pack   | a a a a a E b b E c c c c c c c E |      E ends a document
    rows of 4 tokens        [a a a a][a E b b][E c c c][c c c c][E P P P]     P fills the last row

A pack is some megabytes of one split's documents, chosen and ordered by a hash of their names. So the rows do not depend on how
Spark schedules the work, and a changed document changes the rows of its own pack only. Without a tokenizer, ids 0 to 255 are
UTF-8 bytes, 256 ends a document and 257 is padding; with one, these two follow its ids. The mask id of the task masked_tokens comes
after them and is in no stored row, so both text tasks store the same rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.conf.schema import PrepareConfig, TokensConfig
from sparkring.errors import ConfigError, SourceError
from sparkring.extras import extras_named
from sparkring.models.inputs import TOKENS
from sparkring.pipelines.data.dataset.preprocessing import MaskFeature, TokensFeature
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.columns.splits import SPLITS, key_figures, split_key, split_name, why_empty
from sparkring.spark_jobs.etl.encoding.npy import npy_column
from sparkring.spark_jobs.spark.versions.groups import apply_to_groups

NUM_BYTES = 256
SPLIT, COUNT = "__split", "__count"
"""Columns of packed rows beside row id and tokens: the split, and the number of tokens that are not padding."""
_ROWS_BITS = 32
_DOCUMENT, _TEXT, _PACK, _ORDER = "__document", "__text", "__pack", "__order"


@dataclass(frozen=True)
class TokenEncoding:
    """How text becomes ids: by its bytes, or by a tokenizer."""

    tokenizer: str | None = None
    """Content of a ``tokenizer.json``; None for bytes."""
    size: int = NUM_BYTES
    """Number of ids that text can become."""

    @classmethod
    def load(cls, config: TokensConfig) -> TokenEncoding:
        """Read the tokenizer that the config names, if it names one.

        Raises:
            ConfigError: the file does not exist, or is not a tokenizer.
        """
        if config.tokenizer is None:
            return cls()
        with extras_named():
            import tokenizers  # noqa: F401 (before its own errors, which have no class, are caught)
        try:
            return cls.of(Path(config.tokenizer).read_text(encoding="utf-8"))
        except Exception as error:  # noqa: BLE001 - tokenizers raises no other class
            raise ConfigError(f"prepare.features.tokens.tokenizer: {config.tokenizer} is not a readable tokenizer.json: "
                              f"{error}; name a file that the library tokenizers has saved.") from None

    @classmethod
    def of(cls, tokenizer: str) -> TokenEncoding:
        """The encoding of a ``tokenizer.json``, given its content."""
        with extras_named():
            from tokenizers import Tokenizer

        return cls(tokenizer, Tokenizer.from_str(tokenizer).get_vocab_size(with_added_tokens=True))

    @property
    def end_id(self) -> int:
        """The id after each document."""
        return self.size

    @property
    def pad_id(self) -> int:
        """The id that fills the last row of a pack."""
        return self.size + 1

    @property
    def dtype(self) -> str:
        """The smallest type that Petastorm's readers keep and that holds all ids."""
        return "uint16" if self.pad_id < 2**16 else "int32"

    @property
    def sha256(self) -> str | None:
        """SHA-256 of the tokenizer's file; None for bytes."""
        return None if self.tokenizer is None else hashlib.sha256(self.tokenizer.encode()).hexdigest()

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.generic]]:
        """The ids of each text (UTF-8 bytes), without an end id."""
        if self.tokenizer is None:
            return [np.frombuffer(text, np.uint8) for text in texts]
        with extras_named():
            from tokenizers import Tokenizer

        decoded = [text.decode("utf-8", errors="replace") for text in texts]
        encoded = Tokenizer.from_str(self.tokenizer).encode_batch_fast(decoded, add_special_tokens=False)
        return [np.array(one.ids, np.int64) for one in encoded]


def measure_documents(documents: DataFrame, config: PrepareConfig, *, whole: bool = True) -> dict[str, int]:
    """UTF-8 bytes of the documents of each split.

    Args:
        documents: A document a row.
        config: The names of the columns, and how documents are split.
        whole: Whether each split must have text; appended documents need not fill every split.
    Raises:
        SourceError: a document without name, text or split, or a split without documents.
    """
    assert config.features.tokens is not None
    tokens, key, split = config.features.tokens, split_key(config).column, split_name(config)
    needed = dict.fromkeys((tokens.document, tokens.column, key))
    size = sf.octet_length(named(tokens.column))
    figures = documents.agg(
        sf.count(sf.lit(1)).alias("documents"), *(sf.count_if(named(name).isNull()).alias(f"missing_{name}") for name in needed),
        sf.count_if(named(key).isNotNull() & split.isNull()).alias("nowhere"), *key_figures(config, split.isNotNull()),
        *(sf.sum(sf.when(split == name, size)).alias(name) for name in SPLITS))
    found = figures.collect()[0]
    for name in needed:
        if found[f"missing_{name}"]:
            raise SourceError(f"column {name} is null in {found[f'missing_{name}']} of {found['documents']} documents; each needs one: "
                              "filter or fill it in the query.")
    if found["nowhere"]:
        raise SourceError(f"{key} names no split in {found['nowhere']} of {found['documents']} documents; make it {', '.join(SPLITS)} in "
                          "the query, or filter those rows out.")
    for name in SPLITS:
        if whole and not found[name]:
            raise SourceError(why_empty(config, name, found))
    return {name: found[name] or 0 for name in SPLITS}


def pack_documents(documents: DataFrame, config: PrepareConfig, encoding: TokenEncoding, *, sizes: Mapping[str, int],
                   first_pack: int = 0) -> DataFrame:
    """Cut the documents of each split into rows of equally many tokens.

    Args:
        documents: A document a row, with the columns that the config names.
        config: Columns, length, pack size, and the seed of the order in which documents are joined.
        encoding: From text to ids.
        sizes: Bytes of each split, from ``measure_documents``.
        first_pack: Number of the first pack; row ids follow from it.
    Returns:
        The row id, ``SPLIT``, ``tokens`` (as NdarrayCodec stores them) and ``COUNT``; not computed yet.
    """
    assert config.features.tokens is not None
    tokens, split = config.features.tokens, split_name(config)
    order = sf.xxhash64(named(tokens.document), sf.lit(config.seed).cast("bigint"))
    packs = count_packs(tokens, sizes)
    number = sf.coalesce(*(sf.when(split == name, sf.pmod(order, sf.lit(packs[name]))) for name in sizes))
    chosen = documents.select(split.alias(SPLIT), number.alias(_PACK), order.alias(_ORDER), named(tokens.document).alias(_DOCUMENT),
                              named(tokens.column).cast("binary").alias(_TEXT))

    def pack(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        return _pack(key, table, row_id=config.id_column, encoding=encoding, length=tokens.length, first_pack=first_pack)

    return apply_to_groups(chosen, (SPLIT, _PACK), pack, f"`{config.id_column}` bigint, {SPLIT} string, {TOKENS} binary, {COUNT} int")


def count_packs(config: TokensConfig, sizes: Mapping[str, int]) -> dict[str, int]:
    """Packs of each split, at least one."""
    return {name: max(math.ceil(size / (config.pack_mb * 1e6)), 1) for name, size in sizes.items()}


def fit_tokens(packed: DataFrame, config: PrepareConfig, encoding: TokenEncoding, *,
               sizes: Mapping[str, int]) -> tuple[TokensFeature, dict[str, int]]:
    """The feature as the manifest holds it, and the rows of each split."""
    assert config.features.tokens is not None
    tokens = config.features.tokens
    mask = MaskFeature(mask_id=encoding.pad_id + 1, row_id=config.id_column) if config.task == "masked_tokens" else None
    found = packed.groupBy(SPLIT).agg(sf.count(sf.lit(1)).alias("rows"), sf.sum(COUNT).alias("tokens")).collect()
    feature = TokensFeature(
        column=tokens.column, length=tokens.length, vocabulary=encoding.size + (3 if mask else 2), end_id=encoding.end_id,
        pad_id=encoding.pad_id, mask=mask,
        tokenizer_sha256=encoding.sha256, tokens={row[SPLIT]: row["tokens"] for row in found}, text_bytes=dict(sizes),
        packs=max(count_packs(tokens, sizes).values()))
    return feature, {row[SPLIT]: row["rows"] for row in found}


def with_appended(parent: TokensFeature, new: TokensFeature) -> TokensFeature:
    """The feature of a dataset after rows were appended."""
    def sums(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
        return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}

    return parent.model_copy(update={"tokens": sums(parent.tokens, new.tokens), "text_bytes": sums(parent.text_bytes, new.text_bytes),
                                     "packs": parent.packs + new.packs})


def cut_rows(texts: Sequence[bytes], encoding: TokenEncoding, *, length: int) -> tuple[NDArray[np.generic], NDArray[np.int32]]:
    """Encode texts, join them with an end id after each, and cut.

    Args:
        texts: UTF-8 bytes of the documents in their order.
        encoding: From text to ids.
        length: Tokens of a row.
    Returns:
        (rows, length) ids of the encoding's type, and (rows,) the number in each row that are not padding.
    """
    documents = encoding.encode(texts)
    total = sum(map(len, documents)) + len(documents)
    rows = math.ceil(total / length)
    tokens = np.full(rows * length, encoding.pad_id, encoding.dtype)
    place = 0
    for ids in documents:
        tokens[place:place + len(ids)] = ids
        tokens[place + len(ids)] = encoding.end_id
        place += len(ids) + 1
    counts = np.full(rows, length, np.int32)
    counts[-1:] = total - (rows - 1) * length
    return tokens.reshape(rows, length), counts


def _pack(key: tuple[pa.Scalar, ...], table: pa.Table, *, row_id: str, encoding: TokenEncoding, length: int, first_pack: int) -> pa.Table:
    """Cut one pack, in a task."""
    split, pack = (scalar.as_py() for scalar in key)
    ordered = table.sort_by([(_ORDER, "ascending"), (_DOCUMENT, "ascending"), (_TEXT, "ascending")])
    tokens, counts = cut_rows(ordered[_TEXT].to_pylist(), encoding, length=length)
    first = ((first_pack + pack) * len(SPLITS) + SPLITS.index(split)) << _ROWS_BITS
    return pa.table({row_id: np.arange(first, first + len(tokens)), SPLIT: pa.repeat(split, len(tokens)), TOKENS: npy_column(tokens),
                     COUNT: counts})
