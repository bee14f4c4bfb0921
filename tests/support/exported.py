"""Workspaces with a model that was never trained, for tests of ``sparkring export``: a table, images, texts. No Spark, no ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from harness.datasets import write_dataset
from harness.split_file import write_split
from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.manifest import Manifest, Split, content_id
from sparkring.pipelines.data.dataset.preprocessing import ClassType, ImageFeature, Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.encoding.describe import describe_image
from tests.support.etl_tables import save_untrained
from tests.support.regression_dataset import as_regression
from tests.support.token_dataset import write_token_dataset
from tests.support.training import train_config


def table_workspace(folder: Path, *, dtype: torch.dtype = torch.float32, **model: Any) -> Config:
    """Three numbers and a category; 333 test rows."""
    write_dataset(folder / "dataset", ([60],), test_rows=333)
    config = train_config(folder, model={"hidden": [8], **model} if "network" not in model else model)
    _save(config, dtype)
    return config


def number_workspace(folder: Path) -> Config:
    """Two numbers and a category, and a label that is a number; 333 test rows."""
    write_dataset(folder / "dataset", ([60],), test_rows=333)
    as_regression(folder / "dataset")
    config = train_config(folder, model={"hidden": [8]}, dataset_version=2)
    _save(config)
    return config


def image_workspace(folder: Path, *, channels: int = 3, class_type: ClassType = "string", norm: str = "group") -> Config:
    """PNG images of 6 x 5 pixels in three classes; 40 validation rows and no test rows."""
    write_images(folder / "dataset", channels=channels, class_type=class_type)
    config = train_config(folder, model={"kind": "image", "widths": [8, 8], "norm": norm}, train={"parallel": {"micro_batches": 4}})
    _save(config)
    return config


def text_workspace(folder: Path, **model: Any) -> Config:
    """Rows of six tokens; 37 validation rows and no test rows."""
    write_token_dataset(folder / "dataset", [60])
    config = train_config(folder, model={"kind": "text", **(model or {"width": 8, "layers": 2, "heads": 2})})
    _save(config)
    return config


def write_images(folder: Path, *, channels: int, class_type: ClassType = "string") -> NDArray[np.uint8]:
    """Commit version 1; returns the pixels of the validation split."""
    feature = ImageFeature(column="picture", height=6, width=5, channels=3 if channels == 3 else 1, codec="png",
                           mean=(0.5, 0.4, 0.3)[:channels], std=(0.2, 0.3, 0.25)[:channels])
    field, tensor = describe_image(feature)
    fields = (DataField(name="row_id", dtype="int64"), DataField(name="kind", dtype="int32"), field)
    generator = np.random.default_rng(0)
    pixels = {name: generator.integers(0, 256, (rows, *(size or 0 for size in field.shape))).astype(np.uint8)
              for name, rows in (("train", 8), ("validation", 40))}
    pixels["validation"][0], pixels["validation"][1] = 0, 255
    splits = {name: _write(folder, name, cells, first_id) for first_id, (name, cells) in zip((0, 8), pixels.items(), strict=True)}
    classes = ("cat", "dog", "\u00fcber") if class_type == "string" else ("-1", "7", "100")
    Dataset(str(folder)).commit(Manifest(
        version=1, parent=None, data_id="d1", content_id=content_id(fields, splits), recipe_id="r1", created_at="2026-01-01T00:00:00Z",
        code_version="test", row_id="row_id", label="kind", task="multiclass", classes=3, fields=fields, splits=splits, recipe={},
        source={}, tensors=(tensor,), preprocessing=Preprocessing(numeric=(), categorical=(), train_rows=8, image=feature, classes=classes,
                                                       class_type=class_type)))
    return pixels["validation"]


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An image (height, width[, RGB]) as a PNG file."""
    encoded: NDArray[np.uint8] = cv2.imencode(".png", pixels[..., ::-1] if pixels.ndim == 3 else pixels)[1]
    return encoded.tobytes()


def _write(folder: Path, name: str, pixels: NDArray[np.uint8], first_id: int) -> Split:
    table = pa.table({"row_id": np.arange(first_id, first_id + len(pixels)), "kind": np.arange(len(pixels), dtype=np.int32) % 3,
                      "picture": pa.array([png(each) for each in pixels], pa.binary())})
    required = pa.schema([field.with_nullable(False) for field in table.schema])
    return write_split(folder, name, table.cast(required), [len(pixels)])


def _save(config: Config, dtype: torch.dtype = torch.float32) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        save_untrained(config)
    finally:
        torch.set_default_dtype(before)
