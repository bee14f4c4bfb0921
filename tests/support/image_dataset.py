"""A small committed dataset version of images of three classes, written with pyarrow alone: for tests of what trains on images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparkring.pipelines.data.dataset.manifest import Manifest, Split, content_id
from sparkring.pipelines.data.dataset.preprocessing import ImageFeature, Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset
from tests.support.split_file import cell, write_split

CLASSES = ("left", "middle", "right")
SHAPE = (1, 8, 9)


def write_image_dataset(folder: Path, groups: Sequence[int], *, validation_rows: int = 29) -> Dataset:
    """Commit version 1: a file a split, whose images are noise that is brighter in one third of their width.

    Args:
        folder: The dataset's folder.
        groups: Rows of the train split's row groups.
        validation_rows: Rows of the validation split.
    """
    fields = (DataField(name="row_id", dtype="int64"), DataField(name="place", dtype="int64"),
              DataField(name="image", dtype="float32", shape=SHAPE, codec="ndarray"))
    generator = np.random.default_rng(0)
    splits = {"train": _write(folder, "train", groups, 0, generator),
              "validation": _write(folder, "validation", [validation_rows], sum(groups), generator)}
    dataset = Dataset(str(folder))
    image = ImageFeature(column="image", height=SHAPE[1], width=SHAPE[2], channels=1, codec="png", mean=(0.0,), std=(1.0,))
    dataset.commit(Manifest(
        version=1, parent=None, data_id="d1", content_id=content_id(fields, splits), recipe_id="r1", created_at="2026-01-01T00:00:00Z",
        code_version="test", row_id="row_id", label="place", task="multiclass", classes=len(CLASSES), fields=fields, splits=splits,
        recipe={}, source={},
        tensors=(TensorSpec(name="image", dtype="float32", fields=("image",), stacked=False, shape=SHAPE),
                 TensorSpec(name="label", dtype="int64", fields=("place",), stacked=False),
                 TensorSpec(name="row_id", dtype="int64", fields=("row_id",), stacked=False)),
        preprocessing=Preprocessing(numeric=(), categorical=(), train_rows=splits["train"].rows, image=image, classes=CLASSES)))
    return dataset


def _write(folder: Path, name: str, groups: Sequence[int], first_id: int, generator: np.random.Generator) -> Split:
    count = sum(groups)
    ids = np.arange(first_id, first_id + count, dtype=np.int64)
    places = generator.integers(0, len(CLASSES), count)
    images = generator.standard_normal((count, *SHAPE)).astype(np.float32)
    for image, place in zip(images, places, strict=True):
        image[:, :, 3 * place:3 * place + 3] += 1.5
    table = pa.table({"row_id": ids, "place": places, "image": pa.array([cell(image) for image in images], pa.binary())},
                     schema=pa.schema([pa.field("row_id", pa.int64(), nullable=False), pa.field("place", pa.int64(), nullable=False),
                                       pa.field("image", pa.binary(), nullable=False)]))
    return write_split(folder, name, table, groups)
