"""Convert images that OpenCV reads to one size, one number of channels and one codec.

A file that fits already keeps its bytes (a JPEG is not compressed twice). Executors decode each image once, check it and sum
its pixels for the fit. Files are decoded as Petastorm's CompressedImageCodec does: OpenCV's IMREAD_UNCHANGED, with red first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, assert_never

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

from sparkring.conf.schema import ImageConfig
from sparkring.errors import SourceError
from sparkring.extras import extras_named
from sparkring.pipelines.data.dataset.preprocessing import ImageFeature
from sparkring.spark_jobs.etl.columns.expressions import named

Pixels = NDArray[Any]
FACTS = ("__height", "__width", "__sums", "__squares", "__problem")
"""Columns that ``normalise_images`` adds."""
_FACT_TYPES = (IntegerType(), IntegerType(), ArrayType(LongType()), ArrayType(LongType()), StringType())
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_EXIF = b"Exif\x00\x00"
_HEAD = 1 << 16


def config_of(feature: ImageFeature) -> ImageConfig:
    """The config that converts new images as those that a model was trained on."""
    return ImageConfig(column=feature.column, channels=feature.channels, size=(feature.height, feature.width), codec=feature.codec,
                       jpeg_quality=feature.jpeg_quality)


class Normalised(NamedTuple):
    """One image as the dataset stores it, and its sums for the fit."""

    data: bytes
    height: int
    width: int
    sums: list[int]
    """Sum of the pixels' values, for each channel."""
    squares: list[int]
    """Sum of their squares, for each channel."""


def normalise_images(frame: DataFrame, config: ImageConfig) -> DataFrame:
    """Replace the image column by files of the config's size, channels and codec.

    Args:
        frame: Holds the binary column ``config.column``.
        config: Size, channels and codec.
    Returns:
        The same columns, then ``FACTS``; an image that cannot be decoded is null, with the reason in ``__problem``.
    """
    kept = [StructField(field.name, BinaryType() if field.name == config.column else field.dataType) for field in frame.schema]
    facts = [StructField(name, kind) for name, kind in zip(FACTS, _FACT_TYPES, strict=True)]
    return frame.mapInArrow(partial(_normalise_batches, config=config), StructType([*kept, *facts]))


def fit_images(normalised: DataFrame, config: ImageConfig, *, train: Column, row_id: str) -> ImageFeature:
    """Check that all images can be decoded and have one size, and fit each channel's mean and deviation on the train rows.

    Args:
        normalised: What ``normalise_images`` returned, rows of all splits.
        config: The image column.
        train: Whether a row is a train row.
        row_id: The column that names a row in errors.
    Returns:
        The feature. Its figures are exact, because sums of pixel values are integers.
    Raises:
        SourceError: images that cannot be decoded, or of several sizes where the config names none.
    """
    channel_sums = [sf.sum(sf.when(train, sf.col(name)[channel]))
                    for name in ("__sums", "__squares") for channel in range(config.channels)]
    found = normalised.agg(*_figures(row_id), sf.sum(sf.when(train, sf.col("__height") * sf.col("__width"))).alias("pixels"),
                           sf.array(*channel_sums).alias("sums")).collect()[0]
    _require_usable(found, config.column)
    small, large = found["smallest"], found["largest"]
    if (small["height"], small["width"]) != (large["height"], large["width"]):
        raise SourceError(
            f"images in column {config.column} differ in size: row {small['row']} is {small['height']} x {small['width']}, row "
            f"{large['row']} is {large['height']} x {large['width']} (height x width); set prepare.features.image.size.")
    sums, squares = found["sums"][:config.channels], found["sums"][config.channels:]
    means = [total / found["pixels"] for total in sums]
    deviations = [max(square / found["pixels"] - mean * mean, 0.0) ** 0.5 for square, mean in zip(squares, means, strict=True)]
    return ImageFeature(column=config.column, height=small["height"], width=small["width"], channels=config.channels, codec=config.codec,
                        jpeg_quality=config.jpeg_quality, mean=tuple(mean / 255 for mean in means),
                        std=tuple((deviation or 255.0) / 255 for deviation in deviations))


def check_new_images(normalised: DataFrame, feature: ImageFeature, *, row_id: str) -> None:
    """Check that images can be decoded and have the size of those that a dataset holds.

    Args:
        normalised: What ``normalise_images`` returned; it may have no rows.
        feature: The dataset's.
        row_id: The column that names a row in errors.
    Raises:
        SourceError: images that cannot be decoded, or of another size.
    """
    found = normalised.agg(*_figures(row_id)).collect()[0]
    _require_usable(found, feature.column)
    for image in filter(None, (found["smallest"], found["largest"])):
        if (image["height"], image["width"]) != (feature.height, feature.width):
            raise SourceError(
                f"the image of row {image['row']} in column {feature.column} is {image['height']} x {image['width']}, but the version to "
                f"which it would be appended holds images of {feature.height} x {feature.width} (height x width); leave such rows out in "
                "the query, or set prepare.features.image.size and prepare a whole version, without --append.")


def _figures(row_id: str) -> list[Column]:
    """How many images there are and cannot be used, with an example; and the smallest and the largest of the others."""
    size = sf.struct(sf.col("__height").alias("height"), sf.col("__width").alias("width"), named(row_id).alias("row"))
    bad = sf.col("__problem").isNotNull()
    return [sf.count(sf.lit(1)).alias("rows"), sf.count_if(bad).alias("bad"), sf.min(sf.when(bad, named(row_id))).alias("bad_row"),
            sf.min_by("__problem", sf.when(bad, named(row_id))).alias("problem"), sf.min(sf.when(~bad, size)).alias("smallest"),
            sf.max(sf.when(~bad, size)).alias("largest")]


def _require_usable(found: Row, column: str) -> None:
    if found["bad"]:
        raise SourceError(f"{found['bad']} of {found['rows']} images in column {column} cannot be used, e.g. that of row "
                          f"{found['bad_row']}: {found['problem']}; repair them, or leave their rows out in the query.")


def normalise_image(data: bytes, config: ImageConfig) -> Normalised:
    """Decode one image, and resize and encode it if it does not fit the config.

    Raises:
        ValueError: it cannot be decoded; the message says what was found.
    """
    with extras_named():
        import cv2

    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    if pixels is None:
        raise ValueError(f"{len(data)} bytes beginning with {data[:4].hex() or 'nothing'} are not an image that OpenCV reads")
    if not _fits(data, pixels, config):
        # OpenCV turns it upright by its EXIF tag, drops the alpha channel and keeps 8 bits a value.
        wanted = cv2.IMREAD_GRAYSCALE if config.channels == 1 else cv2.IMREAD_COLOR
        pixels = _resized(cv2.imdecode(np.frombuffer(data, np.uint8), wanted), config.size)
        data, pixels = _encoded(pixels, config)
    planes = pixels.reshape(-1, config.channels)[:, ::-1].astype(np.int64)  # OpenCV has blue first
    return Normalised(data, pixels.shape[0], pixels.shape[1], planes.sum(axis=0).tolist(), (planes * planes).sum(axis=0).tolist())


def _fits(data: bytes, pixels: Pixels, config: ImageConfig) -> bool:
    """Whether the file can be stored as it is: any decoder gets the same pixels from it."""
    match config.codec:
        case "png":  # the header chunk: 8 bits a value, and grey (0) or red, green and blue (2) rather than a palette or alpha
            plain = data.startswith(_PNG) and data[24:26] == bytes([8, 0 if config.channels == 1 else 2]) and b"tRNS" not in data[:_HEAD]
        case "jpeg":
            plain = data.startswith(_JPEG)
        case _:
            assert_never(config.codec)
    shape = pixels.shape if config.channels == 3 else (*pixels.shape, 1)
    upright = _EXIF not in data[:_HEAD] and b"eXIf" not in data[:_HEAD]
    return plain and upright and pixels.dtype == np.uint8 and shape[2:] == (config.channels,) and config.size in (None, pixels.shape[:2])


def _resized(pixels: Pixels, size: tuple[int, int] | None) -> Pixels:
    """Crop the centre to the wanted proportions, then scale; shrinking averages."""
    import cv2

    if size is None or pixels.shape[:2] == size:
        return pixels
    height, width = pixels.shape[:2]
    scale = min(height / size[0], width / size[1])
    cut = (max(round(size[0] * scale), 1), max(round(size[1] * scale), 1))
    top, left = (height - cut[0]) // 2, (width - cut[1]) // 2
    middle = pixels[top:top + cut[0], left:left + cut[1]]
    resized: Pixels = cv2.resize(middle, (size[1], size[0]), interpolation=cv2.INTER_AREA if scale > 1 else cv2.INTER_LINEAR)
    return resized


def _encoded(pixels: Pixels, config: ImageConfig) -> tuple[bytes, Pixels]:
    """The file, and the pixels that will be read from it."""
    import cv2

    match config.codec:
        case "png":
            done, encoded = cv2.imencode(".png", pixels)
            read = pixels
        case "jpeg":
            done, encoded = cv2.imencode(".jpeg", pixels, [cv2.IMWRITE_JPEG_QUALITY, config.jpeg_quality])
            read = cv2.imdecode(encoded, cv2.IMREAD_UNCHANGED)
        case _:
            assert_never(config.codec)
    assert done
    return bytes(encoded), read


def _normalise_batches(batches: Iterator[pa.RecordBatch], *, config: ImageConfig) -> Iterator[pa.RecordBatch]:
    """Normalise images in a task, in one thread, since a task has one core."""
    with extras_named():
        import cv2

    cv2.setNumThreads(0)
    for batch in batches:
        done = [tried(data, config) for data in batch.column(config.column).to_pylist()]
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        images = [image for image, _ in done]
        columns[config.column] = pa.array([image and image.data for image in images], pa.binary())
        facts = ([image and image.height for image in images], [image and image.width for image in images],
                 [image and image.sums for image in images], [image and image.squares for image in images], [why for _, why in done])
        kinds = (pa.int32(), pa.int32(), pa.list_(pa.int64()), pa.list_(pa.int64()), pa.string())
        columns |= {name: pa.array(values, kind) for name, values, kind in zip(FACTS, facts, kinds, strict=True)}
        yield pa.RecordBatch.from_pydict(columns)


def tried(data: bytes | None, config: ImageConfig) -> tuple[Normalised | None, str | None]:
    """The image, or why it cannot be used."""
    if data is None:
        return None, "it is null"
    try:
        return normalise_image(data, config), None
    except ValueError as error:
        return None, str(error)
