"""S3 alone: what its commit rests on, and what a store says when it cannot."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest

from sparkring.errors import CommitConflict, ConfigError, EnvironmentProblem, StorageError
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.s3 import S3Store
from tests.support import seams
from tests.support.s3_server import KEYS, Flaw, s3_server

URL = "s3://bucket/data"


@contextmanager
def served(folder: Path, *, flaw: Flaw = "none") -> Iterator[None]:
    """A server with one bucket, which this process's environment leads to."""
    with s3_server(folder, flaw=flaw) as environment, pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield


def test_a_server_that_knows_no_conditions_is_refused_before_the_first_commit(tmp_path: Path) -> None:
    with served(tmp_path, flaw="no conditions"):
        store = open_store(URL)
        with pytest.raises(EnvironmentProblem, match="ignores If-None-Match: two writers could both commit"):
            store.put_if_absent("versions/1.json", b"1")
        assert store.names("versions") == []


def test_a_client_that_is_stopped_while_it_sends_holds_up_no_other(tmp_path: Path) -> None:
    """Else a test that stops a rank would wait for it, whenever it was just storing something."""
    with served(tmp_path), socket.create_connection(("127.0.0.1", urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0)) as stopped:
        stopped.sendall(b"PUT /bucket/half HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\na part")
        open_store(URL).put("whole", b"1")
        assert open_store(URL).read("whole") == b"1"


def test_a_commit_whose_answer_was_lost_is_still_ours(tmp_path: Path) -> None:
    with served(tmp_path, flaw="lost answers"):
        store = open_store(URL)
        store.put_if_absent("versions/1.json", b"mine")  # done at the first attempt, refused at the second
        assert store.read("versions/1.json") == b"mine"
        with pytest.raises(CommitConflict):
            open_store(URL).put_if_absent("versions/1.json", b"mine")  # the same bytes of another writer are not


def test_what_cannot_be_reached_is_named_without_a_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path), pytest.raises(StorageError, match=r"s3://other/x/a: .*NoSuchBucket") as error:
        open_store("s3://other/x").put("a", b"")
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(error.value)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(seams.S3_ATTEMPTS, 1)
    with pytest.raises(StorageError, match=r"s3://bucket/data/a: .*check that the bucket exists") as error:
        open_store(URL).read("a")
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(error.value)


@pytest.mark.parametrize("url", ["s3://", "s3:///data", "s3://key:hush@bucket/data", "s3://bucket:9000/data"])
def test_an_address_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="an S3 address is s3://bucket/prefix") as error:
        open_store(url)
    assert "hush" not in str(error.value)


def test_both_schemes_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    one, other = open_store("s3a://bucket/data/"), open_store("s3://bucket/data")
    assert isinstance(one, S3Store)
    assert (one.url, one.path("x/y")) == (other.url, other.path("x/y")) == ("s3://bucket/data", "s3a://bucket/data/x/y")
