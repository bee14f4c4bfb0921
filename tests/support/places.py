"""One fixture for all kinds of store: a test that asks for ``place`` runs on local disk, on S3, on HDFS and in memory (by fsspec).

The servers are real, on loopback, started for the first test that needs them and ended with the session. A test module names
this one in ``pytest_plugins``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import boto3
import pytest

from tests.support.hadoop import Hdfs, hdfs
from tests.support.s3_server import s3_server

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


@pytest.fixture(scope="session", params=["local", "s3", "hdfs", "memory"])
def kind_and_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The kind of store, and the URL of a folder in one that runs."""
    if request.param == "local":
        return request.param, str(tmp_path_factory.mktemp("local"))
    if request.param == "memory":
        return request.param, f"memory://{uuid.uuid4().hex}/with/a prefix"
    root = request.getfixturevalue("bucket") if request.param == "s3" else request.getfixturevalue("hadoop").url
    return request.param, f"{root}/with/a prefix"


@pytest.fixture
def place(kind_and_url: tuple[str, str]) -> str:
    """The URL of a folder that nothing else uses."""
    return f"{kind_and_url[1]}/{uuid.uuid4().hex}"
