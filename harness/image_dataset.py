"""A small committed dataset version of images of three classes, written with pyarrow alone: for what trains on images.

Each image is the cell of an array, not a PNG, so that reading it takes no OpenCV.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from harness.split_file import cell, write_split
from sparkring.pipelines.data.dataset.manifest import Manifest, Split, content_id
from sparkring.pipelines.data.dataset.preprocessing import ImageFeature, Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset

CLASSES = ("left", "middle", "right")
SHAPE = (1, 8, 9)


def write_image_dataset(folder: Path, groups: Sequence[int], *, validation_rows: int = 29,
                        shape: tuple[int, int, int] = SHAPE) -> Dataset:
    """Commit version 1: a file a split, whose images are noise that is brighter in one third of their width.

    Args:
        folder: The dataset's folder.
        groups: Rows of the train split's row groups.
        validation_rows: Rows of the validation split.
        shape: Channels, height and width of an image.
    """
    fields = (DataField(name="row_id", dtype="int64"), DataField(name="place", dtype="int64"),
              DataField(name="image", dtype="float32", shape=shape, codec="ndarray"))
    generator = np.random.default_rng(0)
    splits = {"train": _write(folder, "train", groups, 0, generator, shape),
              "validation": _write(folder, "validation", [validation_rows], sum(groups), generator, shape)}
    dataset = Dataset(str(folder))
    channels, height, width = shape
    image = ImageFeature(column="image", height=height, width=width, channels=channels, codec="png", mean=(0.0,), std=(1.0,))
    dataset.commit(Manifest(
        version=1, parent=None, data_id="d1", content_id=content_id(fields, splits), recipe_id="r1", created_at="2026-01-01T00:00:00Z",
        code_version="test", row_id="row_id", label="place", task="multiclass", classes=len(CLASSES), fields=fields, splits=splits,
        recipe={}, source={},
        tensors=(TensorSpec(name="image", dtype="float32", fields=("image",), stacked=False, shape=shape),
                 TensorSpec(name="label", dtype="int64", fields=("place",), stacked=False),
                 TensorSpec(name="row_id", dtype="int64", fields=("row_id",), stacked=False)),
        preprocessing=Preprocessing(numeric=(), categorical=(), train_rows=splits["train"].rows, image=image, classes=CLASSES)))
    return dataset


def _write(folder: Path, name: str, groups: Sequence[int], first_id: int, generator: np.random.Generator,
           shape: tuple[int, int, int]) -> Split:
    count = sum(groups)
    ids = np.arange(first_id, first_id + count, dtype=np.int64)
    places = generator.integers(0, len(CLASSES), count)
    images = generator.standard_normal((count, *shape)).astype(np.float32)
    third = shape[2] // len(CLASSES)
    for image, place in zip(images, places, strict=True):
        image[:, :, third * place:third * (place + 1)] += 1.5
    table = pa.table({"row_id": ids, "place": places, "image": pa.array([cell(image) for image in images], pa.binary())},
                     schema=pa.schema([pa.field("row_id", pa.int64(), nullable=False), pa.field("place", pa.int64(), nullable=False),
                                       pa.field("image", pa.binary(), nullable=False)]))
    return write_split(folder, name, table, groups)
