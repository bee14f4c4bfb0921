"""A dataset version in folds, as one round of a cross-validation reads it: one fold validates, all others train. Pure.

    version   fold-0  fold-1  fold-2  test        of_fold(1):  train = fold-0, fold-2    validation = fold-1    test = test

No file is copied, and a reader sees ordinary splits. The figures by which rows are encoded were fitted by ``prepare`` on the rows that
train, once for each fold; ``stored_columns.py`` applies them, since the files hold what suits all of them.
"""

from __future__ import annotations

from sparkring.conf.schema.data.splits import fold_name
from sparkring.errors import ConfigError, DatasetError
from sparkring.pipelines.data.dataset.manifest import Manifest, joined
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import TensorSpec


def of_fold(manifest: Manifest, fold: int, *, url: str) -> Manifest:
    """The version with the splits ``train`` and ``validation`` (and ``test``, if it has one), and what was fitted on that train split.

    Args:
        manifest: The version as it was committed.
        fold: The fold that validates, from 0.
        url: The dataset, for errors.
    Raises:
        DatasetError: the version is not in folds, or has fewer.
    """
    count = len(manifest.folds)
    if not count:
        raise DatasetError(f"version {manifest.version} of {url} is not in folds; leave fold out, or prepare a version with "
                           "prepare.split={by: fold, column: KEY, folds: 5}.")
    if fold >= count:
        raise DatasetError(f"version {manifest.version} of {url} has no fold {fold}; give 0 to {count - 1}.")
    fitted, test = manifest.folds[fold], {name: split for name, split in manifest.splits.items() if name == "test"}
    train = joined(manifest.splits[fold_name(other)] for other in range(count) if other != fold)
    return manifest.model_copy(update={
        "splits": {"train": train, "validation": manifest.splits[fold_name(fold)], **test}, "preprocessing": fitted,
        "tensors": tuple(_of_fitted(tensor, fitted) for tensor in manifest.tensors), "fold": fold, "stored": manifest.preprocessing})


def require_a_fold(manifest: Manifest, url: str) -> None:
    """Check that a version in folds is a view of one of them, so that there is something to train on.

    Raises:
        ConfigError: it is not.
    """
    if manifest.folds and manifest.fold is None:
        raise ConfigError(f"version {manifest.version} of {url} is in {len(manifest.folds)} folds; train on all but each of them with "
                          "`sparkring cross-validate`, or on all but one with --set fold=0.")


def _of_fitted(tensor: TensorSpec, fitted: Preprocessing) -> TensorSpec:
    """The tensor with the figures of ``fitted`` by which it is made."""
    if tensor.image is not None and fitted.image is not None:
        image = tensor.image.model_copy(update={"mean": fitted.image.mean, "std": fitted.image.std})
        return tensor.model_copy(update={"image": image})
    return tensor if tensor.standard is None else tensor.model_copy(update={"standard": fitted.label})
