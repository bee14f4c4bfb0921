"""Images on their way into a dataset: the rows are the source's, Petastorm's own readers agree, what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from petastorm import make_batch_reader, make_reader
from pyspark.sql import SparkSession

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.spark_jobs.etl.encoding.images import config_of
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import ScoreResult, score
from tests.support.etl_tables import save_untrained
from tests.support.images import encoded, write_idx

pytest_plugins = ["tests.support.spark_sessions"]

SHAPE = (6, 5)
IMAGES = np.random.default_rng(3).integers(0, 256, (90, *SHAPE), dtype=np.uint8)
LABELS = [number % 3 for number in range(90)]
IDX_QUERY = """SELECT id AS row_id, label, image,
               CASE WHEN part = 't10k' THEN 'test' WHEN id % 5 = 0 THEN 'validation' ELSE 'train' END AS split FROM pictures"""


def _config(folder: Path, source: dict[str, Any], query: str, *, beside: dict[str, Any] | None = None, **image: Any) -> Config:
    settings = {
        "sources": {"pictures": source}, "query": query, "task": "multiclass", "label": "label", "num_files": 2,
        "features": {"image": {"column": "image", **image}, **(beside or {})}, "split": {"by": "column", "column": "split"}}
    return parse_config({"name": "pictures", "workspace": str(folder / "workspace"), "run": "first",
                         "model": {"kind": "image", "widths": [4]},
                         "prepare": settings}, origin="test")


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """20 test images, then 70 for training and validation (the parts are read in the order of their names)."""
    folder = tmp_path_factory.mktemp("images")
    write_idx(folder / "idx", "t10k", IMAGES[:20], LABELS[:20])
    write_idx(folder / "idx", "train", IMAGES[20:], LABELS[20:])
    config = _config(folder, {"format": "idx", "path": str(folder / "idx")}, IDX_QUERY, channels=1)
    prepare(config, spark=spark)
    return config


def _manifest(config: Config) -> Manifest:
    return Dataset(config.dataset).manifest()


def _train_ids() -> list[int]:
    return [number for number in range(20, 90) if number % 5]


def test_petastorm_s_own_reader_finds_every_image_pixel_for_pixel_beside_its_label(made: Config) -> None:
    manifest = _manifest(made)
    with make_reader(f"{Dataset(made.dataset).url}/data/{manifest.data_id}/train", reader_pool_type="dummy", num_epochs=1) as reader:
        rows = {int(row.row_id): (row.image, int(row.label)) for row in reader}
    assert sorted(rows) == _train_ids()
    for number, (image, label) in rows.items():
        np.testing.assert_array_equal(image, IMAGES[number])
        assert label == LABELS[number]


def test_petastorm_s_batch_reader_opens_it_too(made: Config) -> None:
    folder = f"{Dataset(made.dataset).url}/data/{_manifest(made).data_id}/test"
    with pytest.warns(UserWarning, match="make_reader"), make_batch_reader(folder, reader_pool_type="dummy", num_epochs=1) as reader:
        found = {int(number): bytes(cell) for batch in reader for number, cell in zip(batch.row_id, batch.image, strict=True)}
    assert found == {number: encoded(IMAGES[number]) for number in range(20)}


def test_our_loader_gives_the_same_pixels_standardised_over_the_train_rows(made: Config) -> None:
    dataset, manifest = Dataset(made.dataset), _manifest(made)
    reader = SplitReader(dataset.store, manifest, "train")
    loader = Loader(reader, LoaderConfig(batch_rows=16, seed=1, lanes=2), rank=0, num_ranks=1)
    images, numbers, labels = [], [], []
    for batch in loader.epoch(0):
        images.append(batch.tensors["image"].numpy())
        numbers += batch.tensors["row_id"].tolist()
        labels += batch.tensors["label"].tolist()
    pixels: NDArray[np.float32] = np.concatenate(images)
    assert (pixels.shape, pixels.dtype) == ((len(_train_ids()), 1, *SHAPE), np.float32)
    assert (float(pixels.mean()), float(pixels.std())) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))
    expected = IMAGES[numbers].astype(float) / 255
    feature = manifest.preprocessing.image
    assert feature is not None
    np.testing.assert_allclose(pixels[:, 0], (expected - feature.mean[0]) / feature.std[0], atol=1e-5)
    assert labels == [LABELS[number] for number in numbers]


def test_the_manifest_says_what_the_rows_are(made: Config) -> None:
    manifest = _manifest(made)
    assert (manifest.task, manifest.classes, manifest.preprocessing.classes, manifest.label) == ("multiclass", 3, ("0", "1", "2"), "label")
    assert {name: split.rows for name, split in manifest.splits.items()} == {"train": 56, "validation": 14, "test": 20}
    assert {split.positives for split in manifest.splits.values()} == {None}
    pixels = IMAGES[_train_ids()].astype(float) / 255
    feature = manifest.preprocessing.image
    assert feature is not None
    assert (feature.mean, feature.std) == (pytest.approx((pixels.mean(),)), pytest.approx((pixels.std(),)))


def test_new_images_are_appended_and_a_known_one_with_another_label_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    folder, changed = tmp_path / "idx", LABELS.copy()
    write_idx(folder, "t10k", IMAGES[:20], LABELS[:20])
    write_idx(folder, "train", IMAGES[20:80], LABELS[20:80])
    config = _config(tmp_path, {"format": "idx", "path": str(folder)}, IDX_QUERY, channels=1)
    prepare(config, spark=spark)
    changed[21] = 2 - changed[21]
    write_idx(folder, "train", IMAGES[20:], changed[20:])
    result = prepare(config, append=True, spark=spark)
    assert (result.version, result.changed_rows, result.rows) == (2, 1, {"train": 56, "validation": 14, "test": 20})
    new = _manifest(config).splits["train"].files[-1].path
    rows = pq.read_table(Path(config.dataset, new)).to_pydict()
    assert sorted(rows["row_id"]) == [number for number in range(80, 90) if number % 5]
    for number, image in zip(rows["row_id"], rows["image"], strict=True):
        assert np.array_equal(cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_GRAYSCALE), IMAGES[number])


def _photographs(folder: Path) -> None:
    """A folder a class: flat colours as JPEG, PNG and a larger PNG."""
    colours = {"red": (220, 10, 10), "sky/blue": (10, 10, 220)}
    for name, colour in colours.items():
        place = folder / name
        place.mkdir(parents=True)
        for number in range(9):
            size = (40, 20) if number == 4 else (20, 20)
            pixels = np.full((*size, 3), colour, np.uint8)
            kind = "jpeg" if number % 2 else "png"
            (place / f"{number}.{kind}").write_bytes(encoded(pixels, kind))
        (place / "notes.txt").write_text("no image")
        (place / ".hidden.png").write_bytes(b"no image")


FOLDER_QUERY = """SELECT xxhash64(path) AS row_id, label, image,
                  CASE WHEN path LIKE '%/8.%' THEN 'test' WHEN path LIKE '%/7.%' THEN 'validation' ELSE 'train' END AS split
                  FROM pictures"""


def test_a_folder_of_photographs_becomes_images_of_one_size_whose_folders_are_their_labels(spark: SparkSession, tmp_path: Path) -> None:
    _photographs(tmp_path / "photographs")
    config = _config(tmp_path, {"format": "images", "path": str(tmp_path / "photographs")}, FOLDER_QUERY, size=[8, 8], codec="jpeg",
                     jpeg_quality=40)
    prepare(config, spark=spark)
    manifest = _manifest(config)
    assert manifest.preprocessing.image is not None
    assert config_of(manifest.preprocessing.image) == config.prepare.features.image, "images to score are converted as these were"
    assert manifest.preprocessing.classes == ("blue", "red")
    assert sum(split.rows for split in manifest.splits.values()) == 18
    with make_reader(f"{Dataset(config.dataset).url}/data/{manifest.data_id}/train", reader_pool_type="dummy", num_epochs=1) as reader:
        for row in reader:
            assert row.image.shape == (8, 8, 3)
            assert int(row.image[4, 4].argmax()) == (0 if row.label == 1 else 2)  # red is class 1; Petastorm gives red first


@pytest.mark.parametrize(("change", "message"), [
    pytest.param({}, r"images in column image differ in size: row -?\d+ is 20 x 20, row -?\d+ is 40 x 20", id="several sizes"),
    pytest.param({"size": [8, 8], "broken": True}, r"1 of 19 images in column image cannot be used, .* are not an", id="a damaged file"),
    pytest.param({"size": [8, 8], "pattern": "*.gif"}, r"holds no image whose name fits '\*.gif'", id="no file that fits"),
    pytest.param({"size": [8, 8], "lonely": True}, r"label label is 'green' in 1 held-out rows and in no train row", id="an unseen class"),
])
def test_what_is_wrong_with_images_is_said_and_nothing_is_left(
        spark: SparkSession, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    _photographs(tmp_path / "photographs")
    if change.pop("broken", False):
        (tmp_path / "photographs/red/3x.png").write_bytes(encoded(IMAGES[0])[:30])
    if change.pop("lonely", False):
        (tmp_path / "photographs/green").mkdir()
        (tmp_path / "photographs/green/8.png").write_bytes(encoded(IMAGES[0]))
    source = {"format": "images", "path": str(tmp_path / "photographs"), "pattern": change.pop("pattern", "*")}
    config = _config(tmp_path, source, FOLDER_QUERY, **change)
    with pytest.raises(SourceError, match=message):
        prepare(config, spark=spark)
    assert Dataset(config.dataset).versions() == []
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(("content", "message"), [
    pytest.param(b"", r"1 of 1 images in column image cannot be used, .* are not an image", id="an empty file"),
    pytest.param(encoded(np.zeros((40, 20, 3), np.uint8)),
                 r"the image of row -?\d+ in column image is 40 x 20, but the version to which .* holds images of 20 x 20",
                 id="another size")])
def test_new_images_that_do_not_fit_are_not_appended(spark: SparkSession, tmp_path: Path, content: bytes, message: str) -> None:
    folder = tmp_path / "photographs"
    _photographs(folder)
    for larger in folder.rglob("4.png"):
        larger.unlink()
    config = _config(tmp_path, {"format": "images", "path": str(folder)}, FOLDER_QUERY)
    prepare(config, spark=spark)
    (folder / "red/10.png").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        prepare(config, append=True, spark=spark)
    assert Dataset(config.dataset).versions() == [1]


def test_a_missing_folder_says_what_to_install(tmp_path: Path) -> None:
    source = {"format": "idx", "path": str(tmp_path / "nowhere"), "if_missing": "apt-get install the-package."}
    with pytest.raises(SourceError, match=r"nowhere does not exist; apt-get install the-package\."):
        prepare(_config(tmp_path, source, IDX_QUERY))


def test_an_image_network_takes_nothing_of_a_table_that_lies_beside_the_images(spark: SparkSession, tmp_path: Path) -> None:
    write_idx(tmp_path / "idx", "t10k", IMAGES[:20], LABELS[:20])
    write_idx(tmp_path / "idx", "train", IMAGES[20:], LABELS[20:])
    table: dict[str, Any] = {"numeric": [{"column": "weight", "indicator": True}], "categorical": ["shelf"],
                             "buckets": [{"column": "weight", "quantiles": 3}], "hashed": [{"column": "shelf", "ids": 9}]}
    query = IDX_QUERY.replace("SELECT id", "SELECT sqrt(id) AS weight, CAST(id % 2 AS STRING) AS shelf, id")
    config = _config(tmp_path, {"format": "idx", "path": str(tmp_path / "idx")}, query, beside=table, channels=1)
    prepare(config, spark=spark)
    save_untrained(config)

    def predictions(result: ScoreResult) -> dict[int, int]:
        rows = pq.read_table(Path(result.url.removeprefix("file://")), columns=["row_id", "prediction"]).to_pylist()
        return {row["row_id"]: row["prediction"] for row in rows}

    given = spark.createDataFrame([(number, encoded(IMAGES[number])) for number in range(20)], "row_id int, image binary")
    result = score(config, spark=spark)
    split = predictions(result)
    labels = pq.read_table(Path(result.url.removeprefix("file://")), columns=["row_id", "label"]).to_pylist()
    assert predictions(score(config, spark=spark, frame=given)) == split
    assert len(split) == 20
    assert set(split.values()) <= {0, 1, 2}, "numbers, as the label is"
    assert {row["row_id"]: row["label"] for row in labels} == dict(enumerate(LABELS[:20]))
    assert predictions(score(config, spark=spark, frame=given.selectExpr("*", "'heavy' AS weight"))) == split  # whatever lies beside
