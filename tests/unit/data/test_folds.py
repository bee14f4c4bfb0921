"""A dataset version in folds: in each view one fold validates and all others train, by figures that were fitted without it."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.datasets import NUMERIC, VOCABULARY, write_dataset
from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.manifest import Manifest, joined, parse_manifest
from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, CategoricalFeature, ImageFeature, NumericFeature, Preprocessing
from sparkring.pipelines.data.dataset.row_schema import ROW_ID, Augment, ImageSpec, Standardisation, TensorSpec
from sparkring.pipelines.data.dataset.stored_columns import changes
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.order.rowhash import rows_digest, to_hex

LEFT_OUT = (("blue", "red"), ("red", "green", "blue"), ("green",))
"""By fold: the colours that are frequent among the rows of the others, the most frequent first."""


def _fitted(colours: tuple[str, ...], *, mean: float) -> Preprocessing:
    return Preprocessing(
        numeric=tuple(NumericFeature(column=name, mean=mean, std=2.0, nulls=0) for name in NUMERIC), train_rows=10,
        categorical=(CategoricalFeature(column="colour", vocabulary=colours),), label=Standardisation(mean=mean, std=2.0))


def _in_folds(folder: Path) -> Dataset:
    """Version 2: three folds of 300, 57 and 40 rows."""
    dataset = write_dataset(folder, [[100, 100], [100]], validation_rows=57, test_rows=40)
    parent = dataset.manifest()
    splits = {f"fold-{place}": split for place, split in enumerate(parent.splits.values())}
    dataset.commit(parent.model_copy(update={
        "version": 2, "splits": splits, "folds": tuple(_fitted(colours, mean=10.0 * place) for place, colours in enumerate(LEFT_OUT))}))
    return dataset


def _rows(dataset: Dataset, manifest: Manifest, split: str) -> dict[str, Any]:
    """All rows of a split as training reads them, by tensor, in the order of their ids."""
    loader = Loader(SplitReader(dataset.store, manifest, split), LoaderConfig(batch_rows=10_000, seed=0, lanes=1), rank=0, num_ranks=1)
    with closing(loader.epoch(0)) as batches:
        found = {name: tensor.numpy().copy() for name, tensor in next(batches).tensors.items()}
    order = np.argsort(found[ROW_ID])
    return {name: values[order] for name, values in found.items()}


def test_each_row_validates_in_one_view_and_trains_in_all_others(tmp_path: Path) -> None:
    dataset, counts = _in_folds(tmp_path), {"train": Counter[int](), "validation": Counter[int]()}
    for fold in range(3):
        manifest = dataset.manifest(fold=fold)
        assert set(manifest.splits) == {"train", "validation"}
        for name, counter in counts.items():
            ids = _rows(dataset, manifest, name)[ROW_ID]
            counter.update(ids.tolist())
            assert manifest.splits[name].rows == len(ids)
            assert manifest.splits[name].rows_digest == to_hex(rows_digest(ids))
    assert counts["validation"] == dict.fromkeys(range(397), 1)
    assert counts["train"] == dict.fromkeys(range(397), 2)
    assert "train" not in dataset.manifest().splits, "the control: without a fold there is nothing to train on"


def test_the_order_of_a_view_s_files_is_that_of_the_folds(tmp_path: Path) -> None:
    dataset = _in_folds(tmp_path)
    whole, view = dataset.manifest(), dataset.manifest(fold=1)
    assert view.splits["train"].files == (*whole.splits["fold-0"].files, *whole.splits["fold-2"].files)
    assert view.splits["train"].positives == sum(whole.splits[name].positives or 0 for name in ("fold-0", "fold-2"))
    assert (view.content_id, view.seal) == (whole.content_id, whole.seal)


def test_numbers_and_ids_are_those_of_the_rows_that_train(tmp_path: Path) -> None:
    dataset = _in_folds(tmp_path)
    whole = dataset.manifest()
    stored = _rows(dataset, whole, "fold-1")
    colours_seen = set[tuple[int, ...]]()
    for fold in range(3):
        rows = _rows(dataset, dataset.manifest(fold=fold), "validation" if fold == 1 else "train")
        mine = np.isin(rows[ROW_ID], stored[ROW_ID])
        assert rows["numeric"][mine] == pytest.approx((stored["numeric"] - 10.0 * fold) / 2.0, rel=1e-6)
        colours = [None, *VOCABULARY]
        expected = [1 + LEFT_OUT[fold].index(colours[place]) if colours[place] in LEFT_OUT[fold] else 0
                    for place in stored["categorical"][:, 0]]
        assert rows["categorical"][mine][:, 0].tolist() == expected
        colours_seen.add(tuple(expected))
    assert len(colours_seen) == 3, "the control: the same rows have other ids in each view"


def test_a_number_that_is_null_gets_what_each_fold_fills_in() -> None:
    stored = Preprocessing(numeric=(NumericFeature(column="km", mean=4.0, std=1.0, nulls=1),), categorical=(), train_rows=3)
    median = NumericFeature(column="km", mean=4.0, std=2.0, nulls=1, fill="median", filled_with=7.0, centre=4.0, spread=2.0)
    logged = NumericFeature(column="km", mean=4.0, std=2.0, nulls=1, fill="constant", filled_with=0.0, scale="log1p", centre=0.0, spread=1)
    for feature, expected in ((median, [-1.0, 1.5, 1.5]), (logged, [np.log(3.0), 0.0, 0.0])):
        fitted = stored.model_copy(update={"numeric": (feature,)})
        found = changes(stored, fitted)["km"](np.array([2.0, np.nan, np.inf]))
        assert found.dtype == np.float32
        assert found == pytest.approx(expected)
    assert changes(None, stored) == {}, "a version that is not in folds holds what the network takes"


def test_a_bucket_is_the_range_of_its_own_fold() -> None:
    def of(*edges: float) -> Preprocessing:
        return Preprocessing(numeric=(), categorical=(), buckets=(BucketFeature(column="km_bucket", of="km", edges=edges),), train_rows=1)

    values = np.array([-5.0, 1.0, 1.5, 2.0, 3.0, 9.0, np.nan])
    all_borders = (1.0, 2.0, 3.0, 4.0)  # of both folds
    ids = np.where(np.isnan(values), 0, 1 + np.searchsorted(all_borders, values, side="right"))
    for edges, expected in (((1.0, 3.0), [1, 2, 2, 2, 3, 3, 0]), ((2.0, 4.0), [1, 1, 1, 2, 2, 3, 0])):
        assert changes(of(*all_borders), of(*edges))["km_bucket"](ids).tolist() == expected


def test_the_figures_of_labels_are_the_fold_s(tmp_path: Path) -> None:
    dataset = _in_folds(tmp_path)
    whole = dataset.manifest()
    tensors = tuple(each.model_copy(update={"standard": Standardisation(mean=99.0, std=9.0)}) if each.name == "label" else each
                    for each in whole.tensors)
    dataset.commit(whole.model_copy(update={"version": 3, "tensors": tensors}))
    (label,) = (each for each in dataset.manifest(3, fold=2).tensors if each.name == "label")
    assert label.standard == Standardisation(mean=20.0, std=2.0)


def test_so_are_those_of_pixels_and_the_changes_to_train_images_stay(tmp_path: Path) -> None:
    dataset = _in_folds(tmp_path)
    whole, augment = dataset.manifest(), Augment(flip=True)
    tensor = TensorSpec(name="image", dtype="float32", fields=("picture",), stacked=False, shape=(1, 8, 8),
                        image=ImageSpec(mean=(0.9,), std=(0.9,), augment=augment))
    folds = tuple(fitted.model_copy(update={"image": ImageFeature(
        column="picture", height=8, width=8, channels=1, codec="png", mean=(0.1 * place,), std=(0.2,))})
        for place, fitted in enumerate(whole.folds))
    dataset.commit(whole.model_copy(update={"version": 3, "tensors": (*whole.tensors, tensor), "folds": folds}))
    *_, seen = dataset.manifest(3, fold=2).tensors
    assert seen.image == ImageSpec(mean=(0.2,), std=(0.2,), augment=augment)


def test_what_is_seen_of_one_fold_is_never_written(tmp_path: Path) -> None:
    view = _in_folds(tmp_path).manifest(fold=0)
    assert view.stored is not None
    read = parse_manifest(view.to_json(), origin="x")
    assert (read.fold, read.stored) == (None, None)


def test_splits_whose_labels_were_not_counted_stay_so_together(tmp_path: Path) -> None:
    one, other = write_dataset(tmp_path, [[5]], validation_rows=4).manifest().splits.values()
    assert joined([one, other]).positives == (one.positives or 0) + (other.positives or 0)
    assert joined([one, other.model_copy(update={"positives": None})]).positives is None


@pytest.mark.parametrize(("version", "fold", "message"), [
    (1, 0, r"version 1 of .* is not in folds; leave fold out, or prepare a version with prepare\.split=\{by: fold"),
    (2, 3, r"version 2 of .* has no fold 3; give 0 to 2\.")])
def test_a_fold_that_is_none_is_refused(tmp_path: Path, version: int, fold: int, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        _in_folds(tmp_path).manifest(version, fold=fold)
