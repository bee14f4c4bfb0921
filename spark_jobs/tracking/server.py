"""MLflow's server: the requests that tracking makes. Each failure is one sentence.

Only MLflow's client is used, with an address of its own: a notebook's ``mlflow.set_tracking_uri`` and active run stay as they are.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sparkring.conf.schema import TrackingConfig
from sparkring.errors import TrackingFailed
from sparkring.extras import extras_named
from sparkring.spark_jobs.tracking.readings import Reading
from sparkring.spark_jobs.tracking.state import without_login

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

MOST_METRICS, MOST_PARAMS, LONGEST_PARAM = 1000, 100, 500
"""MLflow's limits of a request, and of a value on the strictest servers."""
KEY_TAG, WEIGHTS_TAG, RUN_TAG = "sparkring.key", "sparkring.weights_sha256", "sparkring.run"
SETTINGS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_UV_AUTO_DETECT": "false",
            "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
"""MLflow's own settings while we use it, unless the environment sets them. We try again later, so its client need not for minutes; it
adds no files of the project in the current folder to a model; stdout holds our results only."""
URI = "MLFLOW_TRACKING_URI"
P = ParamSpec("P")
T = TypeVar("T")


class _Environment:
    """The environment of this process while runs use MLflow with our settings; several may at once, in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users, self._uri = 0, ""
        self._before: dict[str, str | None] = {}
        """What the first user changed."""

    def address(self, config: TrackingConfig) -> str:
        """The address that a config names, or else the user's environment, whatever ours is."""
        with self._lock:
            return self._address(config)

    def enter(self, config: TrackingConfig) -> None:
        """Take our settings, as the first or as one more; TrackingFailed while others use another address."""
        with self._lock:
            uri = self._address(config)
            if self._users and uri != self._uri:
                raise TrackingFailed(f"MLflow at {_shown(uri)} has to wait: this process is sending to {_shown(self._uri)}, and sends to "
                                     "one server at a time; run `sparkring track` afterwards.")
            if not self._users:
                ours = {**{name: value for name, value in SETTINGS.items() if name not in os.environ}, **({URI: uri} if uri else {})}
                self._before = {name: os.environ.get(name) for name in ours}
                os.environ.update(ours)
                self._uri = uri
            self._users += 1

    def leave(self) -> None:
        """Give them back; the last one restores what there was."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            self._before = {}

    def _address(self, config: TrackingConfig) -> str:
        return config.mlflow_uri or self._before.get(URI, os.environ.get(URI)) or ""


_ENVIRONMENT = _Environment()


def address(config: TrackingConfig) -> str:
    """The server's address; empty for MLflow's own default."""
    return _ENVIRONMENT.address(config)


@contextmanager
def settings(config: TrackingConfig) -> Iterator[None]:
    """Use MLflow with ``SETTINGS`` while the block runs, and with the config's address: clients before 3 ask the environment for it when
    they send artifacts. Other threads may do so at the same time, with the same address.

    Raises:
        TrackingFailed: another thread uses another address.
    """
    _ENVIRONMENT.enter(config)
    try:
        yield
    finally:
        _ENVIRONMENT.leave()


def _in_one_sentence(ask: Callable[Concatenate[MlflowServer, P], T]) -> Callable[Concatenate[MlflowServer, P], T]:
    """Turn whatever a request raises into ``TrackingFailed``."""
    @wraps(ask)
    def asked(self: MlflowServer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return ask(self, *args, **kwargs)
        except TrackingFailed:
            raise
        except Exception as error:  # MLflow's client raises what its libraries raise
            raise TrackingFailed(f"MLflow at {self.place} {reason(error)}; what was sent stays, and `sparkring track` sends the "
                                 "rest.") from error

    return asked


class MlflowServer:
    """One MLflow server, for tracking and as a registry."""

    def __init__(self, uri: str) -> None:
        """Make a client; nothing is requested yet.

        Args:
            uri: The server; empty for MLflow's own default.
        Raises:
            EnvironmentProblem: MLflow is not installed.
        """
        self.place = _shown(uri)
        with extras_named():
            from mlflow.tracking import MlflowClient
        self._client = self._made(MlflowClient, uri)

    @_in_one_sentence
    def _made(self, client: Callable[..., Any], uri: str) -> Any:
        return client(tracking_uri=uri or None)

    @_in_one_sentence
    def run_of(self, experiment: str, *, key: str, name: str) -> str:
        """The id of the run with this key; it is created, and the experiment too, if there is none."""
        found = self._client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
        runs = self._client.search_runs([experiment_id], filter_string=f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
        run = runs[0] if runs else self._client.create_run(experiment_id, run_name=name, tags={KEY_TAG: key})
        return str(run.info.run_id)

    @_in_one_sentence
    def set_status(self, run_id: str, status: str) -> None:
        """Set the run's status; all but RUNNING end it."""
        if status == "RUNNING":
            self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(run_id, status=status)

    @_in_one_sentence
    def describe(self, run_id: str, *, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Add the params that the run lacks (MLflow lets none change), and set the tags."""
        from mlflow.entities import Param, RunTag

        known = self._client.get_run(run_id).data.params
        lacking = [Param(name, value[:LONGEST_PARAM]) for name, value in params.items() if name not in known]
        self._client.log_batch(run_id, tags=[RunTag(name, value[:LONGEST_PARAM]) for name, value in tags.items()])
        for first in range(0, len(lacking), MOST_PARAMS):
            self._client.log_batch(run_id, params=lacking[first:first + MOST_PARAMS])

    @_in_one_sentence
    def log(self, run_id: str, readings: Sequence[Reading]) -> None:
        """Add metrics; those that the run has already are not added again."""
        from mlflow.entities import Metric

        self._client.log_batch(run_id, metrics=[Metric(each.key, each.value, each.time_ms, each.step) for each in readings])

    @_in_one_sentence
    def log_new(self, run_id: str, readings: Sequence[Reading]) -> None:
        """Add those metrics whose latest value is another one, or that the run lacks."""
        known = self._client.get_run(run_id).data.metrics
        new = [each for each in readings if known.get(each.key) != each.value]
        if new:
            self.log(run_id, new)

    @_in_one_sentence
    def upload(self, run_id: str, source: Path, folder: str | None = None) -> None:
        """Upload a file, or what a folder holds, as the run's artifacts."""
        if source.is_dir():
            self._client.log_artifacts(run_id, str(source), folder)
        else:
            self._client.log_artifact(run_id, str(source), folder)

    @_in_one_sentence
    def register(self, model: str, *, run_id: str, tags: Mapping[str, str]) -> None:
        """Make the run's artifact ``model`` a version of a registered model, unless a version has these tags."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        if self._version(model, tags) is None:
            source = f"{self._client.get_run(run_id).info.artifact_uri}/model"
            self._client.create_model_version(model, source, run_id, tags=dict(tags), await_creation_for=0)

    @_in_one_sentence
    def version(self, model: str, tags: Mapping[str, str]) -> str | None:
        """The number of the version with these tags; None if there is none."""
        found = self._version(model, tags)
        return None if found is None else str(found.version)

    @_in_one_sentence
    def aliases(self, model: str) -> dict[str, str]:
        """Alias -> number of the version that has it."""
        return {name: str(number) for name, number in self._client.get_registered_model(model).aliases.items()}

    @_in_one_sentence
    def set_alias(self, model: str, alias: str, number: str | None) -> None:
        """Give a version an alias, or take it from all of them."""
        if number is None:
            self._client.delete_registered_model_alias(model, alias)
        else:
            self._client.set_registered_model_alias(model, alias, number)

    def _version(self, model: str, tags: Mapping[str, str]) -> ModelVersion | None:
        versions = self._client.search_model_versions(f"name = '{model}'", max_results=1000)
        return next((each for each in versions if tags.items() <= each.tags.items()), None)


def _shown(uri: str) -> str:
    return without_login(uri) or "its default address"


def reason(error: BaseException) -> str:
    """Why a request failed, as the end of a sentence about the server."""
    chain = list(_chain(error))
    text = " ".join(str(each) for each in chain)
    status = re.search(r"too many (\d{3}) error responses|error code (\d{3})\b", text)
    if status:
        return f"answered {status.group(1) or status.group(2)}"
    kinds = {type(each).__name__ for each in chain}
    if any("Timeout" in kind for kind in kinds):
        return "did not answer in time"
    if any("Connection" in kind for kind in kinds):
        return "does not answer"
    first = " ".join(str(error).split())[:300].replace("; ", ", ").rstrip(". ")
    return f"refused: {first or type(error).__name__}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
