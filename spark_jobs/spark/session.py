"""The Spark session that a job runs in: the active one as it is, else one made from the config.

On a laptop the session is quiet and listens on loopback only. On a cluster, in a notebook and under spark-submit the caller's settings
win. Also here: the settings that results depend on (time zone, ANSI casts), set for the length of a job and then restored, since the
session may be the user's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from threading import Lock
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

import pyspark
from pyspark.sql import SparkSession

from sparkring.conf.schema import SparkConfig
from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.spark.databricks import without_barrier_stages
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason
from sparkring.spark_jobs.spark.slots import is_local
from sparkring.spark_jobs.spark.start import ctrl_c_ends_start, forget_lost_jvm, jvm_is_lost
from sparkring.spark_jobs.spark.task_resources import TASK_AMOUNT, never_assigned
from sparkring.spark_jobs.spark.versions.supported import is_connect, java_versions, require_supported, require_supported_arrow

RESULT_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",  # hour(), dayofyear() and casts of timestamps read it
    "spark.sql.ansi.enabled": "true",  # overflow and division by zero are errors, not silent nulls: Spark 3.5's default is false
    "spark.sql.csv.parser.columnPruning.enabled": "false",  # a line of too many values is noticed: Spark 3.5 knows no option for it
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",  # dates of one pattern have one meaning: Spark 3.5's default raises for some
}

_HARMLESS = ("use_ssl", "user_id", "user_agent", "session_id")
"""Parameters of a Connect address that are not secret: all of Spark's own except ``token``. Others become headers of each request."""
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""Defaults of a session on this machine: no web page, and no port that other machines can reach."""
_UNTRACED = {"spark.python.sql.dataFrameDebugging.enabled": "false"}
"""Of any new session: PySpark 4.1 and later note for each column expression the line that it is made in, a twentieth of a prepare."""
PARTITIONS_PER_SLOT = 2
"""Shuffle partitions of a local session. Spark's 200 are meant for clusters: on 2 cores they tripled the time of prepare."""


def spark_session(config: SparkConfig, *, app_name: str, given: SparkSession | None = None) -> SparkSession:
    """The given session, else the active one, else a new one.

    Args:
        config: Master or Connect address, and properties that win over the defaults here.
        app_name: Shown in Spark's page.
        given: The session that the caller was given.
    Returns:
        A session; the caller does not stop it, since later jobs of the process use it too.
    Raises:
        EnvironmentProblem: a Spark or pyarrow that is not supported, no suitable Java, a master that cannot be reached, a JVM that
            ended while it started, or tasks that would wait forever for GPUs.
        KeyboardInterrupt: Ctrl-C, which ends the JVM that is being started.
    """
    require_supported_arrow(metadata.version("pyarrow"), where="here")
    session = given or SparkSession.getActiveSession()
    if session is None:
        _require_supported(pyspark.__version__, connect=remote_address(config) is not None)
        session = _new_session(config, app_name)
    _require_supported(session.version, connect=is_connect(session))
    return session


def remote_address(config: SparkConfig) -> str | None:
    """The Connect address of a new session; None for a classic one. PySpark takes it from SPARK_REMOTE if it is given neither."""
    return config.remote or (None if config.master else os.environ.get("SPARK_REMOTE"))


def _require_supported(version: str, *, connect: bool) -> None:
    """``require_supported``, with the way out that there is on Databricks."""
    try:
        require_supported(version, connect=connect)
    except EnvironmentProblem as unsupported:
        raise (without_barrier_stages(connect=connect) or unsupported) from None


def _new_session(config: SparkConfig, app_name: str) -> SparkSession:
    remote = remote_address(config)
    address = remote or config.master or ""
    local = address.startswith("local")
    if is_local(address) and float(config.conf.get(TASK_AMOUNT, 0)) > 0:
        raise never_assigned(address)
    if remote and "@" in urlsplit(remote).netloc:  # the client of Spark 4.1 would take it for the host's name, and try for ten minutes
        raise EnvironmentProblem(f"no Spark session on {without_secrets(remote, remote)}: the address of Spark Connect holds no user and "
                                 "no password; give a token instead, sc://HOST:PORT/;token=TOKEN.")
    builder = SparkSession.builder.appName(app_name)
    if config.remote:
        builder = builder.remote(config.remote)
    elif config.master:
        builder = builder.master(config.master)
    if local or not remote:
        require_java()
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {**RESULT_SETTINGS, **_UNTRACED, **(_local(address) if local else {}), **(_quiet() if local or not remote else {})}
    for key, value in {**defaults, **config.conf}.items():
        builder = builder.config(key, value)
    try:
        with warnings.catch_warnings(), ctrl_c_ends_start():
            # A local Connect server is started with these properties, and then the client tries to set them once more.
            warnings.filterwarnings("ignore", message="Failed to set spark", category=UserWarning)
            return builder.getOrCreate()
    except (*SPARK_ERRORS, RuntimeError, ValueError, OSError) as error:
        shown, said = without_secrets(address, address), without_secrets(reason(error), address)
        if jvm_is_lost(error):
            forget_lost_jvm()
            raise EnvironmentProblem(f"no Spark session on {shown or 'the default master'}: its JVM ended while it started; see what it "
                                     "printed, that the machine has memory for it (spark.driver.memory), and that spark.conf fits it."
                                     ) from (error if shown == address else None)
        raise EnvironmentProblem(f"no Spark session on {shown or 'the default master'}: {said}; "
                                 "check the address, that it accepts connections, and that spark.conf fits it."
                                 ) from (error if shown == address else None)  # a traceback would show what the message does not


def without_secrets(text: str, address: str) -> str:
    """``text`` with the secrets of a Connect or master address replaced by ``***``.

    Args:
        text: The address itself, or a foreign error that may repeat it or parts of it.
        address: E.g. ``sc://user:password@host:443/;token=...;x-tenant=...``: user info and the values of parameters are secret,
            except for the harmless ones that Connect itself defines.
    """
    parameters = (part.partition("=") for part in re.split("[;?&]", address)[1:])
    secrets = [value if equals else key for key, equals, value in parameters if key.strip().lower() not in _HARMLESS]
    found = re.search(r"//([^;?]*)@", address)
    secrets += [found.group(1), found.group(1).partition(":")[2]] if found else []
    for secret in sorted({*secrets, *map(unquote, secrets)} - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


@contextmanager
def result_settings(spark: SparkSession) -> Iterator[None]:
    """Give a session the settings that results depend on while the block runs; then restore its own.

    Blocks of several threads may overlap, as in a ``CrossValidator``: the first one gives, the last one restores.
    """
    with _HELD.lock:
        held = _HELD.by_session.setdefault(spark, _Before(dict.fromkeys(RESULT_SETTINGS)))
        if not held.blocks:
            held.values = {key: spark.conf.get(key, None) for key in RESULT_SETTINGS}
            for key, value in RESULT_SETTINGS.items():
                spark.conf.set(key, value)
        held.blocks += 1
    try:
        yield
    finally:
        with _HELD.lock:
            held.blocks -= 1
            if not held.blocks:
                _restore(spark, held.values)


@dataclass
class _Before:
    """A session's own settings, and how many blocks have changed them."""

    values: dict[str, str | None]
    blocks: int = 0


@dataclass
class _Held:
    """The sessions of this process whose settings are changed."""

    lock: Lock = field(default_factory=Lock)
    by_session: WeakKeyDictionary[SparkSession, _Before] = field(default_factory=WeakKeyDictionary)


_HELD = _Held()


def _restore(spark: SparkSession, values: Mapping[str, str | None]) -> None:
    for key, old in values.items():
        if old is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, old)


def spark_path(path: str) -> str:
    """The path by which Spark addresses a file of the driver's file system, with any default file system; a URL is returned unchanged.

    Databricks mounts volumes under the same path for Spark and for plain files; there only the plain path works.
    """
    return path if "://" in path or path.startswith(("/Volumes/", "/dbfs/")) else f"file:{path}"


def java_version() -> int | None:
    """Major version of the Java that Spark would start (``JAVA_HOME``, else ``PATH``); None if there is none."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        return None
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False,
                              process_group=0).stderr  # a terminal's Ctrl-C is for this process to handle
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)  # Java 8 calls itself 1.8
    return int(found.group(1)) if found else None


def require_java() -> None:
    """Check that Spark runs on the Java installed here.

    Raises:
        EnvironmentProblem: no Java was found, or an unsuitable release.
    """
    found, wanted = java_version(), java_versions(pyspark.__version__)
    if found in wanted:
        return
    where = f"in JAVA_HOME={os.environ['JAVA_HOME']}" if os.environ.get("JAVA_HOME") else "on PATH"
    what = "none" if found is None else f"Java {found}"
    raise EnvironmentProblem(
        f"found {what} {where}, Spark needs Java {alternatives(wanted)}; install one (Debian, Ubuntu: apt-get install "
        "openjdk-17-jre-headless; RHEL: dnf install java-17-openjdk-headless) and set JAVA_HOME to it if it is not first on PATH.")


def alternatives(releases: tuple[int, ...]) -> str:
    """``8, 11 or 17``."""
    *first, last = map(str, releases)
    return f"{', '.join(first)} or {last}"


def _local(address: str) -> dict[str, str]:
    """Defaults for ``local``, ``local[2]`` or ``local[*]``."""
    found = re.match(r"local\[(\d+|\*)", address)
    slots = 1 if found is None else os.cpu_count() or 1 if found.group(1) == "*" else int(found.group(1))
    return {**_LOCAL, "spark.sql.shuffle.partitions": str(PARTITIONS_PER_SLOT * slots)}


def _quiet() -> dict[str, str]:
    """Settings for a JVM of our own: it logs only errors on the console, which shows our progress bars."""
    log_config = resources.files("sparkring.conf").joinpath("log4j2.yaml")
    return {"spark.ui.showConsoleProgress": "false", "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log_config}"}
