"""Folders of images and of texts in any store, and what preparing them makes: the same content, wherever they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.errors import SparkringError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.prepare import prepare
from tests.support.images import encoded

COUNT = 45
KINDS: dict[str, dict[str, Any]] = {
    "images": {
        "sources": {"given": {"format": "images", "path": "pictures"}}, "task": "multiclass", "label": "label",
        "query": "SELECT xxhash64(path) AS row_id, path, label, image FROM given",
        "features": {"image": {"column": "image", "channels": 1}}},
    "text": {
        "sources": {"given": {"format": "text", "path": "code", "pattern": "*.py"}}, "task": "next_token",
        "query": "SELECT path, content FROM given",
        "features": {"tokens": {"column": "content", "document": "path", "length": 32, "pack_mb": 0.001}}}}


def fill(store: Store) -> None:
    """Images of three labels, programs in two folders, and files that are neither."""
    pixels = np.random.default_rng(5).integers(0, 256, (COUNT, 6, 5), dtype=np.uint8)
    for number in range(COUNT):
        store.put(f"pictures/{('cat', 'dog', 'emu')[number % 3]}/{number} of many.png", encoded(pixels[number]))
        store.put(f"code/{'ab'[number % 2]}/c/m{number}.py", f"x = {number}  # {'.' * number}\n".encode())
    store.put("pictures/cat/readme.txt", b"no image")
    store.put("code/a/readme.txt", b"no program")


def config(kind: str, root: str, folder: Path, *, dataset_url: str | None = None) -> Config:
    """What prepares the images or the texts that lie below ``root``, into ``folder`` or ``dataset_url``."""
    settings = KINDS[kind]
    (source,) = settings["sources"].values()
    return parse_config({
        "name": kind, "workspace": str(folder / kind), "dataset_url": dataset_url,
        "model": {"kind": "image", "widths": [4]} if kind == "images" else {"kind": "text", "width": 8, "layers": 1, "heads": 2},
        "prepare": settings | {"sources": {"given": source | {"path": f"{root}/{source['path']}"}}, "num_files": 2,
                               "split": {"by": "hash", "column": "path", "validation_share": 0.2, "test_share": 0.2}}}, origin="test")


def outcome(made: Config, spark: SparkSession) -> dict[str, Any]:
    """What preparing gives, and whether a second time it is known again; of an error its text."""
    try:
        first, again = prepare(made, spark=spark), prepare(made, spark=spark)
    except SparkringError as error:
        return {"error": str(error)}
    manifest = Dataset(made.dataset).manifest()
    return {"content_id": manifest.content_id, "rows": sum(first.rows.values()), "reused": [first.reused, again.reused],
            "source": manifest.source["given"]}


def local(folder: Path, spark: SparkSession) -> dict[str, Any]:
    """Kind -> what the files give on local disk."""
    fill(open_store(str(folder / "sources")))
    return {kind: outcome(config(kind, str(folder / "sources"), folder), spark) for kind in KINDS}


def remote(root: str, folder: Path, spark: SparkSession, *, spark_root: str | None = None) -> dict[str, Any]:
    """The same where Spark alone reads them.

    Args:
        root: URL of an empty folder.
        folder: For the datasets.
        spark: The session.
        spark_root: The same URL as Spark has it.
    """
    fill(open_store(root))
    return {kind: outcome(config(kind, spark_root or root, folder), spark) for kind in KINDS}


def check(found: dict[str, Any], local_found: dict[str, Any]) -> None:
    """See that the content is the same wherever it was read from, and that an unchanged folder is known again."""
    for kind in KINDS:
        assert found[kind]["content_id"] == local_found[kind]["content_id"], found
        assert (found[kind]["rows"], found[kind]["reused"]) == (local_found[kind]["rows"], [False, True])
        assert "listing_sha256" in found[kind]["source"]


def add_image(root: str) -> None:
    """One more image comes."""
    open_store(root).put("pictures/dog/more.png", encoded(np.zeros((6, 5), np.uint8)))
