"""A small committed dataset version of token rows, written with pyarrow alone: for tests of what trains on text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from harness.split_file import cell, write_split
from sparkring.pipelines.data.dataset.manifest import Manifest, Split, content_id
from sparkring.pipelines.data.dataset.preprocessing import MaskFeature, Preprocessing, TokensFeature
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.encoding.describe import describe_tokens

LENGTH, VOCABULARY, END, PAD = 6, 13, 11, 12


def write_token_dataset(folder: Path, groups: Sequence[int], *, validation_rows: int = 37, masked: bool = False) -> Dataset:
    """Commit version 1: a file a split, whose rows count through the vocabulary from anywhere, in steps of one or two.

    Args:
        folder: The dataset's folder.
        groups: Rows of the train split's row groups.
        validation_rows: Rows of the validation split.
        masked: Whether the task is masked_tokens.
    """
    fields = (DataField(name="row_id", dtype="int64"), DataField(name="tokens", dtype="int32", shape=(LENGTH,), codec="ndarray"))
    generator = np.random.default_rng(0)
    splits = {"train": _write(folder, "train", groups, 0, generator),
              "validation": _write(folder, "validation", [validation_rows], sum(groups), generator)}
    counts = {name: split.rows * LENGTH for name, split in splits.items()}
    feature = TokensFeature(
        column="text", length=LENGTH, vocabulary=VOCABULARY + masked, end_id=END, pad_id=PAD, tokenizer_sha256=None, tokens=counts,
        text_bytes=counts, mask=MaskFeature(mask_id=PAD + 1, row_id="row_id") if masked else None)
    dataset = Dataset(str(folder))
    dataset.commit(Manifest(
        version=1, parent=None, data_id="d1", content_id=content_id(fields, splits), recipe_id="r1", created_at="2026-01-01T00:00:00Z",
        code_version="test", row_id="row_id", label="", task="masked_tokens" if masked else "next_token", fields=fields,
        splits=splits, recipe={}, source={},
        tensors=(*describe_tokens(feature)[1], TensorSpec(name="row_id", dtype="int64", fields=("row_id",), stacked=False)),
        preprocessing=Preprocessing(numeric=(), categorical=(), train_rows=splits["train"].rows, tokens=feature)))
    return dataset


def _write(folder: Path, name: str, groups: Sequence[int], first_id: int, generator: np.random.Generator) -> Split:
    count = sum(groups)
    ids = np.arange(first_id, first_id + count, dtype=np.int64)
    starts, steps = generator.integers(0, END, (count, 1)), generator.integers(1, 3, (count, 1))
    tokens = ((starts + steps * np.arange(LENGTH)) % END).astype(np.int32)
    tokens[generator.random(count) < 0.1, LENGTH - 2:] = PAD
    table = pa.table({"row_id": ids, "tokens": pa.array([cell(row) for row in tokens], pa.binary())},
                     schema=pa.schema([pa.field("row_id", pa.int64(), nullable=False), pa.field("tokens", pa.binary(), nullable=False)]))
    return write_split(folder, name, table, groups)
