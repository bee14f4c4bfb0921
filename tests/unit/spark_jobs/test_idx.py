"""IDX files: pairs are found, unpacked once, and what is damaged is named."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from sparkring.errors import SourceError
from sparkring.spark_jobs.etl.sources.idx import find_parts
from tests.support.images import write_idx


def test_a_folder_s_parts_are_found_in_order_of_their_names_packed_or_not(tmp_path: Path) -> None:
    images = np.arange(3 * 2 * 5, dtype=np.uint8).reshape(3, 2, 5)
    write_idx(tmp_path / "data", "train", images, [4, 5, 6])
    write_idx(tmp_path / "data", "t10k", images[:1], [7], packed=False)
    test, train = find_parts("fashion", tmp_path / "data", cache=tmp_path / "cache")
    assert (test.name, train.name) == ("t10k", "train")
    np.testing.assert_array_equal(train.images.items(1, 3), images[1:])
    np.testing.assert_array_equal(train.labels.items(0, 3), [4, 5, 6])
    assert test.images.shape == (1, 2, 5)


def test_an_unpacked_file_is_used_again(tmp_path: Path) -> None:
    write_idx(tmp_path / "data", "train", np.zeros((2, 2, 2), np.uint8), [0, 1])
    (first,) = find_parts("fashion", tmp_path / "data", cache=tmp_path / "cache")
    changed = first.images.path.stat().st_mtime_ns
    (again,) = find_parts("fashion", tmp_path / "data", cache=tmp_path / "cache")
    assert (again.images.path, again.images.path.stat().st_mtime_ns) == (first.images.path, changed)
    assert not list((tmp_path / "cache").rglob("*.part"))


def _break(folder: Path, how: str) -> None:
    images, labels = folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz"
    header = struct.pack(">4B3I", 0, 0, 8, 3, 2, 2, 2)
    if how == "no labels":
        labels.unlink()
    elif how == "empty":
        images.unlink()
        labels.unlink()
    elif how == "floats":
        images.write_bytes(gzip.compress(struct.pack(">4B3I", 0, 0, 0x0D, 3, 2, 2, 2) + bytes(32)))
    elif how == "short":
        images.write_bytes(gzip.compress(header + bytes(7)))
    elif how == "no gzip":
        images.write_bytes(b"<html>not found</html>")
    elif how == "cut gzip":
        images.write_bytes(images.read_bytes()[:-9])
    elif how == "other count":
        images.write_bytes(gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, 3, 2, 2) + bytes(12)))


@pytest.mark.parametrize(("how", "message"), [
    ("no labels", "holds no train-labels-idx"), ("empty", "holds no pair of files"), ("floats", "begins with 00000d03, expected 00000803"),
    ("short", "has 23 bytes, its header promises 24"), ("no gzip", "cannot be unpacked"), ("cut gzip", "cannot be unpacked"),
    ("other count", "part train has 3 images and 2 labels")])
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, how: str, message: str) -> None:
    write_idx(tmp_path, "train", np.zeros((2, 2, 2), np.uint8), [0, 1])
    _break(tmp_path, how)
    with pytest.raises(SourceError, match=message):
        find_parts("fashion", tmp_path, cache=tmp_path / "cache")
    assert not list(tmp_path.rglob("*.part"))
