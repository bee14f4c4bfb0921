"""One fixture for all kinds of store: a test that asks for ``place`` runs on local disk, on S3 and on HDFS.

The servers are real, on loopback, started for the first test that needs them and ended with the session. A test module names
this one in ``pytest_plugins``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest

from tests.support.s3_server import s3_server

BUCKET = "sparkring-tests"
KINDS = ("local", "s3")


@pytest.fixture(scope="session", params=KINDS)
def kind_and_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The kind of store, and the URL of a folder in one that runs."""
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        url = {"local": _local, "s3": _s3}[request.param](folder, stack)
        yield request.param, url


@pytest.fixture
def place(kind_and_url: tuple[str, str]) -> str:
    """The URL of a folder that nothing else uses."""
    return f"{kind_and_url[1]}/{uuid.uuid4().hex}"


def _local(folder: Path, stack: ExitStack) -> str:
    return str(folder)


def _s3(folder: Path, stack: ExitStack) -> str:
    environment = stack.enter_context(s3_server(folder))
    patched = stack.enter_context(pytest.MonkeyPatch.context())
    for name, value in environment.items():
        patched.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}/with/a prefix"
