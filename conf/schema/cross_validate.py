"""How ``sparkring cross-validate`` trains the folds of a dataset version: ``cross_validate``."""

from __future__ import annotations

from sparkring.conf.schema.base.section import Positive, Section


class CrossValidateConfig(Section):
    """A cross-validation: one run for each fold of a dataset version, whose rows it validates on."""

    at_once: Positive | None = None
    """Folds that train at once, each on ``train.num_ranks`` slots; null: as many as there are slots for.
    ``launcher: horovod.spark`` runs one at a time."""
