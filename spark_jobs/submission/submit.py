"""From a config to spark-submit: the line that runs a command of sparkring as a Spark application, for example on YARN.

    sparkring submit yarn/flights --job train --print

    staged/<hash>/sparkring-0.1.0.zip    this code: the driver and the executors import the same
                  job.yaml               the whole config, with its base and --set merged in
                  job.py                 the program that Spark starts: the command line

The staged folder's name is the hash of its content: a printed line stays valid, and equal submissions share one folder.
Source: https://spark.apache.org/docs/4.0.0/submitting-applications.html and running-on-yarn.html
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import psutil
import yaml

from sparkring.conf.loading import ConfigLike, load_as_written, load_config
from sparkring.conf.paths import anchored
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, EnvironmentProblem
from sparkring.version import __version__

DEPLOY_MODE = "spark.submit.deployMode"
ROOMS = ("conf", "models", "pipelines", "spark_jobs")
"""Folders that are parts of the package; their place differs between a checkout and a wheel (docs/adr/0001)."""
MAIN_NAME = "job.py"
MAIN = '''"""Runs a command of sparkring in the driver that Spark started."""

from sparkring.__main__ import main

if __name__ == "__main__":
    main()
'''
_SECRET_KEY = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of properties that Spark itself hides in its page and logs."""
_THE_SAME_BITS = (1980, 1, 1, 0, 0, 0)
"""Time of every file in an archive, so that equal content makes equal archives."""


class Job(StrEnum):
    """A command that can be submitted."""

    DEMO = "demo"
    PREPARE = "prepare"
    TRAIN = "train"
    EVALUATE = "evaluate"
    SCORE = "score"
    INGEST = "ingest"
    RETRAIN = "retrain"


@dataclass(frozen=True)
class Submission:
    """A line that can be run, and the folder staged for it."""

    command: tuple[str, ...]
    folder: Path

    @property
    def line(self) -> str:
        """The line as a user types it into a shell."""
        return shlex.join(self.command)

    def run(self) -> int:
        """Run it to its end, in the main thread; returns spark-submit's exit code, or 130 after Ctrl-C.

        SIGTERM and Ctrl-C are forwarded, as SIGTERM, to the driver if it runs here: it saves and ends. A driver in the cluster stays.
        """
        process = subprocess.Popen(self.command, process_group=0)  # else Ctrl-C would end the driver's JVM before the driver has saved
        with _forward_signals(process, str(self.folder / MAIN_NAME)) as received:
            code = process.wait()
        if signal.SIGINT in received:
            return 128 + signal.SIGINT
        return 128 - code if code < 0 else code


def default_folder() -> Path:
    """The folder in which submissions are staged by default."""
    return Path.home() / ".cache" / "sparkring" / "submit"


def make_submission(config: ConfigLike, job: Job, *, overrides: Sequence[str] = (), folder: Path, package: Path | None = None,
                    networks: Sequence[Path] = ()) -> Submission:
    """Stage the files of an application, and compose its line.

    A relative path in a file is refused where other machines would read it: it names a place of this one. With the driver in the cluster
    all paths stay as they are written.

    Args:
        config: The job's config, as ``load_config`` takes it; ``spark.master`` and ``spark.conf`` become options.
        job: The command to run.
        overrides: ``--set`` texts for the config.
        folder: The folder to stage in.
        package: A wheel of sparkring to run instead of the code that runs now.
        networks: Files that register the user's own networks; they are staged too.
    Raises:
        ConfigError: no master, a secret among the Spark properties, a path that means nothing elsewhere, or no such wheel.
        EnvironmentProblem: there is no spark-submit.
    """
    written = load_as_written(config, overrides)
    spark = written.spark
    if spark.remote or not spark.master:
        raise ConfigError(f"spark-submit needs spark.master, e.g. yarn; found {'spark.remote' if spark.remote else 'none'}. "
                          "Set spark.master, or run the command itself instead of submitting it.")
    secret = next((key for key in spark.conf if _SECRET_KEY.search(key)), None)
    if secret:
        raise ConfigError(f"spark.conf.{secret} would stand in the process list of this machine; "
                          "put it into spark-defaults.conf, or into a credential provider of Hadoop.")
    in_cluster = spark.conf.get(DEPLOY_MODE, "client") == "cluster"
    if not spark.master.startswith("local"):
        _require_paths(written, in_cluster=in_cluster)
    # The names differ from each other, and no import finds them.
    files = {f"networks-{number}-{path.name}": path.read_bytes() for number, path in enumerate(networks)}
    values = _plain(written) if in_cluster else anchored(_plain(load_config(config, overrides)), Path.cwd())
    documents = {"job.yaml": yaml.safe_dump(values, sort_keys=False).encode(), **files}
    staged = _stage(folder, {f"sparkring-{__version__}.zip": _archive(package), MAIN_NAME: MAIN.encode(), **documents})
    # In a container, --files lie in the working directory.
    document, *own = [name if in_cluster else str(staged / name) for name in documents]
    properties = {key: value for key, value in spark.conf.items() if key != DEPLOY_MODE}
    return Submission(folder=staged, command=(
        spark_submit(), "--master", spark.master, "--deploy-mode", "cluster" if in_cluster else "client",
        "--name", f"sparkring {written.name}",
        *(part for key, value in sorted(properties.items()) for part in ("--conf", f"{key}={value}")),
        "--py-files", str(staged / f"sparkring-{__version__}.zip"),
        *(("--files", ",".join(str(staged / name) for name in documents)) if in_cluster else ()),
        str(staged / MAIN_NAME), *(part for name in own for part in ("--networks", name)), job.value, document))


def spark_submit() -> str:
    """The path of spark-submit: in ``SPARK_HOME``, else on ``PATH``, else pyspark's own.

    Raises:
        EnvironmentProblem: there is none.
    """
    home = os.environ.get("SPARK_HOME")
    found = shutil.which("spark-submit", path=str(Path(home) / "bin")) if home else shutil.which("spark-submit")
    if found is None and not home:
        with resources.as_file(resources.files("pyspark").joinpath("bin/spark-submit")) as own:
            found = str(own) if own.is_file() else None
    if found is None:
        raise EnvironmentProblem(f"no spark-submit in {f'SPARK_HOME={home}' if home else 'PATH, nor beside pyspark'}; "
                                 "set SPARK_HOME to the cluster's Spark.")
    return found


@contextmanager
def _forward_signals(process: subprocess.Popen[bytes], program: str) -> Iterator[list[int]]:
    """While the block runs, forward SIGTERM and SIGINT, as SIGTERM, to the Python driver below ``process``, or else to ``process`` itself.

    Yields:
        The list of signals received so far.
    """
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        with suppress(psutil.Error):  # the process has ended meanwhile
            spark_submit_jvm = psutil.Process(process.pid)
            drivers = [child for child in spark_submit_jvm.children() if _runs(child, program)]
            (drivers or [spark_submit_jvm])[0].terminate()

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _runs(process: psutil.Process, program: str) -> bool:
    """Whether a process runs ``program``. Ended ones do not, such as the shell that bin/spark-class leaves as a zombie."""
    try:
        return program in process.cmdline()
    except psutil.Error:
        return False


def package_files() -> Iterator[tuple[str, bytes]]:
    """All files of the code that runs now, by their names in an archive, sorted; from a checkout, a wheel or a zip alike."""
    found = dict(_tree(resources.files("sparkring"), "sparkring", skipped=ROOMS))
    for room in ROOMS:
        found |= _tree(resources.files(f"sparkring.{room}"), f"sparkring/{room}")
    return iter(sorted(found.items()))


def _tree(folder: Traversable, name: str, *, skipped: tuple[str, ...] = ()) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name not in {"__pycache__", *skipped}:
            yield from _tree(entry, f"{name}/{entry.name}")
        elif entry.is_file():
            yield f"{name}/{entry.name}", entry.read_bytes()


def _archive(package: Path | None) -> bytes:
    """The code as a zip: Spark puts .zip files on Python's path, and ignores .whl files silently."""
    if package is not None:
        if not zipfile.is_zipfile(package) or "sparkring/__init__.py" not in zipfile.ZipFile(package).namelist():
            raise ConfigError(f"{package} is no wheel of sparkring; name dist/sparkring-{__version__}-py3-none-any.whl of `make wheels`, "
                              "or leave --package out to submit the code that runs here.")
        return package.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in package_files():
            archive.writestr(zipfile.ZipInfo(name, _THE_SAME_BITS), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _plain(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude_unset=True)


def _stage(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Put files into a folder named by their content, which only this user can read. It appears completely or not at all."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
    target = folder.absolute() / digest.hexdigest()[:16]
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=".part-"))
        for name, data in files.items():
            (beside / name).write_bytes(data)
        try:
            beside.rename(target)
        except OSError:  # somebody staged the same meanwhile
            shutil.rmtree(beside)
    return target


def _require_paths(config: Config, *, in_cluster: bool) -> None:
    """Check that paths mean the same on the machines where the job runs."""
    wanted = {"workspace": config.workspace, "dataset_url": config.dataset}
    if in_cluster:
        wanted |= {f"prepare.sources.{name}.path": str(path) for name, source in config.prepare.sources.items()
                   if (path := getattr(source, "path", None)) is not None}
    for key, path in wanted.items():
        if not urlparse(path).scheme and not path.startswith("/"):
            where = "the driver runs on some node of the cluster" if in_cluster else "executors run on other machines"
            raise ConfigError(f"{key}={path} is a relative path, and {where}; give a path that all of them see, or a URL.")
