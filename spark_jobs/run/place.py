"""Which run a config means: a new version, model or training is another run, and all of them stay side by side.

    train                                   the run that the config names, else the one named after its identity
    evaluate, score, report, generate ...   the run that the config names (champion and candidate are the registry's), else in this order
                                              1. the one that ``train`` would resume
                                              2. that of the newest earlier dataset version, of the same model and training
                                              3. the only run of the workspace

Reads the list of runs and manifests; writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, SparkringError, in_one_line, nearest
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.registry.documents import ALIASES
from sparkring.spark_jobs.registry.registry import Registry
from sparkring.spark_jobs.run.given import with_given_weights
from sparkring.spark_jobs.run.identity import name_of
from sparkring.spark_jobs.run.listing import run_names
from sparkring.spark_jobs.spark.progress import SILENT, Progress


def with_run(config: Config, manifest: Manifest) -> Config:
    """The config with its run named, for training on the dataset version of ``manifest``. Pure.

    Raises:
        ConfigError: the name is an alias of the registry.
    """
    if config.run in ALIASES:
        raise ConfigError(f"run={config.run} is an alias of the registry, which other commands take for that model's run; give a run that "
                          "is trained another name.")
    return config if config.run is not None else config.changed(run=name_of(config, manifest))


def with_existing_run(config: Config, *, progress: Progress = SILENT) -> Config:
    """The config with the run named that its results are read from.

    Args:
        config: Names the workspace; its ``run``, or its dataset, model and training, choose the run.
        progress: Gets a note if that is not the run that ``train`` would resume.
    Raises:
        ConfigError: the workspace has no such run, or several, none of which is this config's.
        ModelVersionNotFound: no model has that alias.
    """
    found = with_run_if_any(config, progress=progress)
    if found.run is None:
        raise ConfigError(f"{config.runs} holds no run yet; run `sparkring train` with this config first.")
    return found


def with_run_if_any(config: Config, *, progress: Progress = SILENT) -> Config:
    """The same, but with no run named if the workspace has none at all.

    Raises:
        ConfigError: the workspace has no such run, or several, none of which is this config's.
    """
    if config.run in ALIASES:
        return config.changed(run=Registry(config.workspace).version(config.run).run)
    names = run_names(open_store(config.runs))
    if not names:
        return config.changed(run=None)
    if config.run is not None:
        require_run(names, config.run, config.runs)
        return config
    own, missed = _own_run(config, names)
    if own is None and len(names) > 1:
        raise ConfigError(f"{config.runs} holds the runs {in_one_line(names)}, {_why_none(config)}; "
                          f"name one, e.g. --set run={names[-1]}, or run `sparkring train` with this config first.")
    run = own or names[0]
    if own is None:
        progress.note(f"using run {run}, the only one here: this config's own run is not begun yet")
    elif missed:
        progress.note(f"using run {run}, this config's latest: it has none on dataset version {missed} yet")
    return config.changed(run=run)


def require_run(names: Collection[str], name: str, runs_url: str) -> None:
    """Check that a run exists.

    Raises:
        ConfigError: it does not.
    """
    if name not in names:
        raise ConfigError(f"{runs_url} holds no run {name}, it holds {in_one_line(sorted(names)) or 'none'}"
                          f"{nearest(name, names) or '; name one of these'}")


def _own_run(config: Config, names: Collection[str]) -> tuple[str | None, int]:
    """The run of this config on the version that it asks for, and 0; or on the newest version before, and the one asked for."""
    try:
        config, dataset = with_given_weights(config), Dataset(config.dataset)
        versions = dataset.versions()
        asked = config.dataset_version or max(versions, default=0)
        for version in reversed(versions):
            if version <= asked and any(name.startswith(f"v{version}-") for name in names):
                name = name_of(config, dataset.manifest(version, fold=config.fold))
                if name in names:
                    return name, 0 if version == asked else asked
    except SparkringError:  # the dataset is gone or damaged; runs can be read without it
        pass
    return None, 0


def _why_none(config: Config) -> str:
    """Why none of several runs is this config's."""
    with suppress(SparkringError):  # whoever cannot look must not say that nothing is there
        if not Dataset(config.dataset).versions():
            return f"and none is known to be this config's, since {config.dataset} holds no dataset: if it was moved, bring it back"
    return "none of which was trained with this config"
