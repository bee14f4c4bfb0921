"""Images and labels in the IDX format of the MNIST family: header arithmetic, and Spark rows of a folder of such files.

    train-images-idx3-ubyte.gz   ids 0 ..., part train     0x00 0x00 type rank, then rank sizes (big-endian int32), then values
    train-labels-idx1-ubyte.gz
    t10k-images-idx3-ubyte.gz    ids continue, part t10k

Files come in pairs of images and labels, gzipped or not. Executors read slices of the unpacked files, so they must see the
folder and the cache. Images become PNG files, without loss.
Source: the format is described by LeCun, Cortes, Burges, "The MNIST database of handwritten digits".
"""

from __future__ import annotations

import gzip
import math
import re
import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sparkring.errors import SourceError
from sparkring.extras import extras_named
from sparkring.spark_jobs.spark.versions.arrow_frames import frame_of

COLUMNS = "id bigint, part string, label int, image binary"
_FILE_NAME = re.compile(r"(?P<part>.+)-(?P<kind>images|labels)[-.]idx(?P<rank>[13])-ubyte(\.gz)?")
_UBYTE = 0x08
_SLICE_ROWS = 5_000
_CHUNK = 1 << 20


@dataclass(frozen=True)
class IdxFile:
    """One unpacked file of unsigned bytes."""

    path: Path
    shape: tuple[int, ...]
    """(items,) of labels, (items, height, width) of images."""

    @property
    def item_bytes(self) -> int:
        """Bytes of one label or image."""
        return math.prod(self.shape[1:])

    @property
    def header_bytes(self) -> int:
        """Bytes before the first value."""
        return 4 + 4 * len(self.shape)

    def items(self, start: int, stop: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """Items [start, stop), read from the disk."""
        with self.path.open("rb") as file:
            file.seek(self.header_bytes + start * self.item_bytes)
            values = np.frombuffer(file.read((stop - start) * self.item_bytes), np.uint8)
        return values.reshape(stop - start, *self.shape[1:])


@dataclass(frozen=True)
class IdxPart:
    """Images and labels that belong together."""

    name: str
    images: IdxFile
    labels: IdxFile


def read_idx(spark: SparkSession, name: str, folder: Path, *, cache: Path) -> DataFrame:
    """The images of a folder of IDX files, a row each.

    Args:
        spark: The session to read with.
        name: The source's name, for errors.
        folder: Holds pairs of files such as ``train-images-idx3-ubyte.gz`` and ``train-labels-idx1-ubyte.gz``.
        cache: Folder for unpacked files; all executors must see it.
    Returns:
        ``id`` (0, 1, ... over all parts in the order of their names), ``part``, ``label`` and ``image`` (PNG).
    Raises:
        SourceError: no pair of files, or one that is damaged or does not fit its partner.
    """
    slices, first = [], 0
    for part in find_parts(name, folder, cache=cache):
        rows = part.labels.shape[0]
        slices += [(part.name, str(part.images.path), str(part.labels.path), start, min(start + _SLICE_ROWS, rows), first)
                   for start in range(0, rows, _SLICE_ROWS)]
        first += rows
    plan = pa.table(dict(zip(("part", "images", "labels", "start", "stop", "first"), map(list, zip(*slices, strict=True)), strict=True)))
    return frame_of(spark, plan).repartition(len(slices), "images", "start").mapInArrow(_read_slices, COLUMNS)


def find_parts(name: str, folder: Path, *, cache: Path) -> list[IdxPart]:
    """The pairs of files in ``folder``, unpacked where necessary, ordered by part."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _FILE_NAME.fullmatch(path.name)
        if match:
            found.setdefault(match["part"], {}).setdefault(match["kind"], path)
    parts = []
    for part, files in sorted(found.items()):
        for kind in ("images", "labels"):
            if kind not in files:
                raise SourceError(f"source {name}: {folder} holds no {part}-{kind}-idx*-ubyte beside the others of {part}; complete it.")
        images, labels = (open_idx(name, _unpacked(files[kind], cache), rank=rank) for kind, rank in (("images", 3), ("labels", 1)))
        if images.shape[0] != labels.shape[0]:
            raise SourceError(f"source {name}: part {part} has {images.shape[0]} images and {labels.shape[0]} labels; "
                              "get both files again.")
        parts.append(IdxPart(part, images, labels))
    if not parts:
        raise SourceError(f"source {name}: {folder} holds no pair of files such as train-images-idx3-ubyte.gz and "
                          f"train-labels-idx1-ubyte.gz; correct prepare.sources.{name}.path.")
    return parts


def open_idx(name: str, path: Path, *, rank: int) -> IdxFile:
    """Read the header of an unpacked file and check that the file is as long as it says.

    Raises:
        SourceError: it is not an IDX file of unsigned bytes of this rank, or has another length.
    """
    with path.open("rb") as file:
        magic, sizes = file.read(4), file.read(4 * rank)
    if magic != bytes([0, 0, _UBYTE, rank]) or len(sizes) != 4 * rank:
        raise SourceError(f"source {name}: {path} begins with {magic.hex() or 'nothing'}, expected {bytes([0, 0, _UBYTE, rank]).hex()} "
                          f"(IDX, unsigned bytes, {rank} dimension{'s' if rank > 1 else ''}); get the file again.")
    opened = IdxFile(path, struct.unpack(f">{rank}I", sizes))
    wanted = opened.header_bytes + opened.shape[0] * opened.item_bytes
    if path.stat().st_size != wanted:
        raise SourceError(f"source {name}: {path} has {path.stat().st_size} bytes, its header promises {wanted}; get the file again.")
    return opened


def _unpacked(path: Path, cache: Path) -> Path:
    """The file itself; of a ``.gz``, its content, unpacked into ``cache`` unless it exists there."""
    if path.suffix != ".gz":
        return path
    packed = path.read_bytes()
    target = cache / f"{path.name}-{zlib.crc32(packed):08x}" / path.stem
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial_file = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        partial_file.write_bytes(gzip.decompress(packed))  # checks its CRC; in memory, since these files are small
        partial_file.replace(target)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path} cannot be unpacked: {error}; get the file again.") from None
    finally:
        partial_file.unlink(missing_ok=True)
    return target


def _read_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read slices and encode their images, in a task."""
    with extras_named():
        import cv2

    for batch in batches:
        for part, images, labels, start, stop, first in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            encoded = [cv2.imencode(".png", image)[1].tobytes() for image in open_idx(part, Path(images), rank=3).items(start, stop)]
            yield pa.RecordBatch.from_pydict({
                "id": pa.array(np.arange(first + start, first + stop)), "part": pa.repeat(part, stop - start),
                "label": pa.array(open_idx(part, Path(labels), rank=1).items(start, stop).astype(np.int32)),
                "image": pa.array(encoded, pa.binary())})
