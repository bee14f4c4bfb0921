"""One image on its way into a dataset: kept as it is where it fits, else decoded, resized and encoded anew."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from petastorm.codecs import CompressedImageCodec
from petastorm.unischema import UnischemaField

from sparkring.conf.schema import ImageConfig
from sparkring.pipelines.data.dataset.preprocessing import ImageFeature
from sparkring.spark_jobs.etl.encoding.images import config_of, normalise_image
from tests.support.images import encoded

GREY = np.random.default_rng(0).integers(0, 256, (6, 8), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (6, 8, 3), dtype=np.uint8)
"""Red first, as Petastorm has it."""


def _config(**values: object) -> ImageConfig:
    return ImageConfig.model_validate({"column": "image", **values})


def _read(data: bytes, codec: str = "png") -> NDArray[np.uint8]:
    """The pixels that Petastorm makes of a stored value."""
    pixels: NDArray[np.uint8] = CompressedImageCodec(codec).decode(UnischemaField("image", np.uint8, (), None, nullable=False), data)
    return pixels


@pytest.mark.parametrize(("pixels", "channels"), [pytest.param(GREY, 1, id="grey"), pytest.param(COLOUR, 3, id="colour")])
def test_a_png_that_fits_keeps_its_bytes(pixels: NDArray[np.uint8], channels: int) -> None:
    data = encoded(pixels)
    done = normalise_image(data, _config(channels=channels))
    assert (done.data, done.height, done.width) == (data, 6, 8)
    np.testing.assert_array_equal(_read(done.data), pixels)
    planes = pixels.reshape(48, channels).astype(int)
    assert (done.sums, done.squares) == (planes.sum(axis=0).tolist(), (planes**2).sum(axis=0).tolist())


def test_a_jpeg_that_fits_is_not_compressed_twice() -> None:
    data = encoded(COLOUR, "jpeg")
    assert normalise_image(data, _config(codec="jpeg")).data == data
    pixels = _read(normalise_image(data, _config(codec="png")).data)
    np.testing.assert_array_equal(pixels, _read(data))  # as PNG it keeps what the JPEG showed


def test_what_is_fitted_is_what_will_be_read_also_after_a_lossy_codec() -> None:
    done = normalise_image(encoded(COLOUR), _config(codec="jpeg", jpeg_quality=30))
    assert not np.array_equal(_read(done.data, "jpeg"), COLOUR)
    assert done.sums == _read(done.data, "jpeg").reshape(48, 3).astype(int).sum(axis=0).tolist()


def test_an_image_to_score_gets_the_bytes_that_training_stored() -> None:
    config, other = (_config(codec="jpeg", size=[6, 8], jpeg_quality=quality) for quality in (30, 90))
    feature = ImageFeature(column="image", height=6, width=8, channels=3, codec="jpeg", jpeg_quality=30, mean=(0.0,) * 3, std=(1.0,) * 3)
    stored = normalise_image(encoded(COLOUR), config).data
    assert normalise_image(encoded(COLOUR), config_of(feature)).data == stored
    assert normalise_image(encoded(COLOUR), other).data != stored, "the control"


@pytest.mark.parametrize(("pixels", "channels", "shape"), [(GREY, 3, (6, 8, 3)), (COLOUR, 1, (6, 8))])
def test_grey_and_colour_become_what_is_asked_for(pixels: NDArray[np.uint8], channels: int, shape: tuple[int, ...]) -> None:
    assert _read(normalise_image(encoded(pixels), _config(channels=channels)).data).shape == shape


@pytest.mark.parametrize("kind", ["alpha", "sixteen bits"])
def test_alpha_and_sixteen_bits_become_eight_bits_of_colour(kind: str) -> None:
    bgr = COLOUR[..., ::-1]
    strange = np.dstack([bgr, np.full((6, 8), 7, np.uint8)]) if kind == "alpha" else bgr.astype(np.uint16) * 257
    done = normalise_image(bytes(cv2.imencode(".png", strange)[1]), _config())
    np.testing.assert_array_equal(_read(done.data), COLOUR)


def test_resizing_takes_the_middle_in_the_wanted_proportions() -> None:
    wide = np.zeros((4, 12), np.uint8)
    wide[:, 4:8] = 200  # the middle square
    done = normalise_image(encoded(wide), _config(channels=1, size=[2, 2]))
    np.testing.assert_array_equal(_read(done.data), np.full((2, 2), 200, np.uint8))


def test_a_photograph_is_turned_upright_as_its_camera_says() -> None:
    data = encoded(np.repeat(np.arange(0, 240, 20, dtype=np.uint8)[:, None], 6, axis=1), "jpeg")  # 12 x 6
    # An EXIF block that says "turn by 90 degrees" (orientation 6), after the start marker.
    exif = b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"
    turned = data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:]
    done = normalise_image(turned, _config(channels=1, codec="jpeg"))
    assert (done.height, done.width) == (6, 12)
    assert _read(done.data, "jpeg").shape == (6, 12)


@pytest.mark.parametrize(("data", "message"), [(b"", "0 bytes beginning with nothing"), (b"GIF8 is not read", "beginning with 47494638"),
                                               (encoded(GREY)[:40], "are not an image")])
def test_what_is_no_image_is_said(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        normalise_image(data, _config())
