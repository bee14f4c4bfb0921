"""Tables of Delta, Iceberg, Avro and a database, with the real jars: the same rows give the same dataset, and a password stays unseen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.etl_jars import SECRET, URL
from tests.support.jars import table_jars

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """What the program found, all that it and its JVM wrote, and its folder."""
    folder = tmp_path_factory.mktemp("jars")
    done = subprocess.run([sys.executable, "-m", "tests.support.etl_jars", str(folder), *map(str, table_jars())],
                          capture_output=True, text=True, timeout=240, check=False,
                          env={name: value for name, value in os.environ.items() if name != "HADOOP_CONF_DIR"})  # tests of HDFS set it
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr, folder


@pytest.mark.parametrize("kind", ["delta", "iceberg", "avro", "jdbc"])
def test_the_same_rows_give_the_same_dataset_from_any_kind_of_table(ran: tuple[dict[str, Any], str, Path], kind: str) -> None:
    assert ran[0][kind]["content_id"] == ran[0]["csv"]["content_id"]
    assert (ran[0][kind]["reused"], ran[0][kind]["facts"]["rows"]) == (False, 900)


@pytest.mark.parametrize("kind", ["delta", "iceberg", "jdbc"])
def test_an_unchanged_table_is_known_again(ran: tuple[dict[str, Any], str, Path], kind: str) -> None:
    assert ran[0][f"{kind} again"] == ran[0][kind] | {"reused": True}  # delta and iceberg have had rows added meanwhile


def test_the_manifest_says_which_version_was_read(ran: tuple[dict[str, Any], str, Path]) -> None:
    results, _, folder = ran
    assert results["delta"]["facts"] == {"path": f"{folder}/delta version 0", "format": "delta", "version": 0, "rows": 900}
    assert results["iceberg"]["facts"]["path"] == f"lake.shop.trips snapshot {results['iceberg']['facts']['snapshot_id']}"
    assert results["jdbc"]["facts"]["path"] == URL
    assert results["jdbc"]["facts"]["rows_digest"].startswith("900-")


def test_without_a_version_the_latest_is_read_and_the_manifest_says_which(ran: tuple[dict[str, Any], str, Path]) -> None:
    results, _, folder = ran
    assert "is not unique" in results["delta latest"]  # version 1 holds five rows twice
    assert "is not unique" in results["iceberg latest"]
    assert results["delta mended"]["facts"] == {"path": f"{folder}/delta version 2", "format": "delta", "version": 2, "rows": 900}
    assert results["delta mended"]["content_id"] == results["csv"]["content_id"]


def test_a_version_that_is_not_there_is_an_error(ran: tuple[dict[str, Any], str, Path]) -> None:
    assert "source trips: Spark cannot read" in ran[0]["delta beyond"]
    assert "version 7" in ran[0]["delta beyond"]
    assert "snapshot 7" in ran[0]["iceberg beyond"]


def test_a_changed_database_is_read_anew(ran: tuple[dict[str, Any], str, Path]) -> None:
    assert "is not unique" in ran[0]["jdbc changed"]  # it was not taken for the version that is there


def test_a_password_comes_from_the_environment_and_is_seen_nowhere(ran: tuple[dict[str, Any], str, Path]) -> None:
    results, written, folder = ran
    assert "takes a secret from the environment variable SHOP_USER, which is not set; export it" in results["jdbc unset"]
    assert "source trips: Spark cannot read jdbc:h2" in results["jdbc wrong"]
    assert "JDBC" in written  # the log was looked at while the database was read
    assert SECRET not in written
    documents = list(folder.glob("workspace/dataset/versions/*.json"))
    assert len(documents) == 6
    assert not any(SECRET in document.read_text() for document in documents)
