"""``sparkring models list | show | promote | rollback``: the model versions of a workspace, and which of them is used. Starts no Spark.

    promote     without a version: register the model of the config's run, and make it the champion
    rollback    the champion before the present one comes back
"""

from __future__ import annotations

from sparkring.conf.schema import Config
from sparkring.spark_jobs.registry.documents import AliasChange, ModelVersion
from sparkring.spark_jobs.registry.register import register_run
from sparkring.spark_jobs.registry.registry import Registry
from sparkring.spark_jobs.run.place import with_existing_run
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.tracking.mirror import mirror


def list_models(config: Config) -> tuple[list[ModelVersion], AliasChange]:
    """All model versions of the config's workspace, oldest first, and who has which alias."""
    registry = Registry(config.workspace)
    return [registry.version(number) for number in registry.versions()], registry.aliases()


def show_model(config: Config, which: str) -> tuple[ModelVersion, list[AliasChange]]:
    """A model version by its number or alias, and all changes of the aliases that are about it, oldest first.

    Raises:
        ModelVersionNotFound: there is no such version.
        RegistryChanged: its files are not the registered ones.
    """
    registry = Registry(config.workspace)
    version = registry.version(which)
    registry.verify(version)
    return version, [change for change in registry.history() if change.version == version.version]


def promote(config: Config, which: str | None = None, *, reason: str, progress: Progress = SILENT) -> AliasChange:
    """Make a model the champion, in one atomic act.

    Args:
        config: Names the workspace, and without ``which`` the run.
        which: A version's number or alias; None for the model of the config's run, which is registered here if it is not yet.
        reason: Kept with the change.
        progress: Where to report.
    Raises:
        ConfigError: the run has no trained model, or it was not evaluated.
        ModelVersionNotFound: there is no such version.
        RegistryChanged: its files are not the registered ones.
        CommitConflict: the aliases were changed meanwhile; nothing was done.
    """
    registry = Registry(config.workspace)
    if which is None:
        run = with_existing_run(config, progress=progress).run
        assert run is not None
        which = str(register_run(registry, run).version)
    change = registry.promote(which, reason=reason)
    mirror(registry, config, progress)
    return change


def rollback(config: Config, *, reason: str, progress: Progress = SILENT) -> AliasChange:
    """Bring the champion before the present one back, in one atomic act.

    Raises:
        ModelVersionNotFound: there was none before.
        RegistryChanged: its files are not the registered ones any more.
        CommitConflict: the aliases were changed meanwhile; nothing was done.
    """
    registry = Registry(config.workspace)
    change = registry.rollback(reason=reason)
    mirror(registry, config, progress)
    return change
