"""One fixture for all kinds of store: a test that asks for ``place`` runs on local disk, in a volume, on S3, on HDFS and in memory (by
fsspec).

The servers are real, on loopback, started for the first test that needs them and ended with the session. A test module names
this one in ``pytest_plugins``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.support.files_api import files_api
from tests.support.hadoop import Hdfs, hdfs
from tests.support.s3_server import s3_server
from tests.support.volume_mount import lacking, volume_mount

BUCKET = "sparkring-tests"


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """A file system that this process's environment leads to."""
    with hdfs(tmp_path_factory.mktemp("hadoop")) as cluster, pytest.MonkeyPatch.context() as patched:
        patched.setenv("HADOOP_CONF_DIR", str(cluster.conf_dir))
        yield cluster


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a bucket that this process's environment leads to."""
    with s3_server(tmp_path_factory.mktemp("s3")) as environment, pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}"


@pytest.fixture(scope="session")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The path of a volume, and the folder behind it."""
    missing = lacking()
    if missing:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("volume")
    with volume_mount(folder) as path:
        yield str(path), folder / "files"


@pytest.fixture(scope="session")
def volume(mounted: tuple[str, Path]) -> Iterator[str]:
    """The path of a volume; this process's environment leads to its Files API."""
    path, files = mounted
    with files_api(files, volume=path) as environment, pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        yield path


@pytest.fixture(scope="session", params=["local", "volume", "s3", "hdfs", "memory"])
def kind_and_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The kind of store, and the URL of a folder in one that runs."""
    if request.param == "local":
        return request.param, str(tmp_path_factory.mktemp("local"))
    if request.param == "memory":
        return request.param, f"memory://{uuid.uuid4().hex}/with/a prefix"
    if request.param == "volume":
        return request.param, f"{request.getfixturevalue('volume')}/with/a prefix"
    root = request.getfixturevalue("bucket") if request.param == "s3" else request.getfixturevalue("hadoop").url
    return request.param, f"{root}/with/a prefix"


@pytest.fixture
def place(kind_and_url: tuple[str, str]) -> str:
    """The URL of a folder that nothing else uses."""
    return f"{kind_and_url[1]}/{uuid.uuid4().hex}"
