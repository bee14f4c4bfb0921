"""A run that starts from given weights, as its driver sees it: the file's hash goes into the config, and what does not fit is refused."""

from __future__ import annotations

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, in_one_line
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.spark_jobs.spark.progress import Progress


def with_given_weights(config: Config) -> Config:
    """The config with ``model.weights_sha256`` filled in, which belongs to the run's identity; itself without ``model.weights``.

    Raises:
        ConfigError: there are no such weights, or they have another hash than the config says.
    """
    if config.model.weights is None:
        return config
    from sparkring.pipelines.training.job.given_weights import pinned  # imports torch

    return config.changed(model=pinned(config.model))


def require_weights_fit(config: Config, manifest: Manifest, progress: Progress) -> None:
    """Check that given weights are of such a network and for such inputs, and note what a run does not start from.

    Raises:
        ConfigError: tensors are missing, superfluous or of another shape, and ``model.weights_partial`` is not set; or the inputs of the
            model whose weights they are mean something else.
    """
    if config.model.weights is None:
        return
    from sparkring.pipelines.training.job.given_weights import find_weights, fit_of, network_kinds, require_fit
    from sparkring.pipelines.training.job.same_inputs import other_meanings, other_scales

    file = find_weights(config.model.weights)
    fit = fit_of(file.kinds(), network_kinds(config.model, manifest))
    require_fit(fit, config.model)
    without = f"; left out: {', '.join(fit.findings)}" if fit.findings else ""
    progress.note(f"training: starts from {len(fit.taken)} tensors of {file.store.path(file.name)}{without}")
    if file.card is None:
        return
    other = other_meanings((file.card.task, file.card.preprocessing), (manifest.task, manifest.preprocessing))
    if other:
        raise ConfigError(f"the model of model.weights={config.model.weights} was trained on {file.card.dataset_url}, and on version "
                          f"{manifest.version} of this dataset other things are meant by {in_one_line(other)}; train on a version that "
                          f"`prepare --append` made of that dataset, or give {file.store.path(file.name)} itself, whose inputs are not "
                          "compared.")
    scales = other_scales(file.card.preprocessing, manifest.preprocessing)
    if scales:
        progress.note(f"training: the model of model.weights was trained with other figures to fill and scale {in_one_line(scales)}; the "
                      "first steps adapt it")
