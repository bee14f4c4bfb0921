"""Folders of images and texts on HDFS and S3, read by Spark there, give what they give on local disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.prepare import prepare
from tests.support import remote_folders
from tests.support.etl_tables import etl_config
from tests.support.hadoop import Hdfs
from tests.support.spark_cluster import standalone

pytest_plugins = ["tests.support.places", "tests.support.spark_sessions"]

pytestmark = pytest.mark.timeout(600)  # a cluster of its own, and a server that answers one request at a time

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def local(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the folders give on local disk, and the content of the trips."""
    folder = tmp_path_factory.mktemp("local")
    trips = etl_config(folder)
    prepare(trips, spark=spark)
    return remote_folders.local(folder, spark) | {"trips": Dataset(trips.dataset).manifest().content_id}


@pytest.mark.nightly
def test_folders_on_hdfs_give_what_they_give_on_local_disk(
        hadoop: Hdfs, spark: SparkSession, local: dict[str, Any], tmp_path: Path) -> None:
    root = f"{hadoop.url}/with/a space"
    found = remote_folders.remote(root, tmp_path, spark)
    remote_folders.check(found, local)
    remote_folders.add_image(root)  # a folder that changed is read anew
    more = remote_folders.outcome(remote_folders.config("images", root, tmp_path), spark)
    assert (more["rows"], more["reused"]) == (found["images"]["rows"] + 1, [False, True])
    nothing = remote_folders.outcome(remote_folders.config("text", f"{root}/none", tmp_path / "none"), spark)
    assert "source given: Spark finds nothing at" in nothing["error"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder, and the address of a Spark cluster of one worker."""
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder, gpus=("0",)) as master:
        yield folder, master


def _ran(cluster: tuple[Path, str], bucket: str, *more: str) -> dict[str, Any]:
    """What a program found whose Spark is that cluster."""
    folder, master = cluster
    done = subprocess.run([sys.executable, "-m", "tests.support.etl_s3a", str(folder), master, bucket, *more], cwd=ROOT, text=True,
                          capture_output=True, timeout=560, check=False,
                          env={name: value for name, value in os.environ.items() if name != "HADOOP_CONF_DIR"})
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def on_s3(cluster: tuple[Path, str], bucket: str) -> dict[str, Any]:
    """What Spark did with ``s3a``."""
    return _ran(cluster, bucket)


@pytest.mark.nightly
def test_folders_on_s3_give_what_they_give_on_local_disk(on_s3: dict[str, Any], local: dict[str, Any]) -> None:
    remote_folders.check(on_s3["folders"], local)


@pytest.mark.nightly
def test_spark_on_a_cluster_writes_to_the_bucket_by_itself(on_s3: dict[str, Any], local: dict[str, Any]) -> None:
    assert on_s3["staged"] == []  # nothing went by way of the driver's disk
    assert (on_s3["damage"], on_s3["left"], on_s3["reused"]) == (None, [], True)
    assert on_s3["content_id"] == local["trips"]  # the bytes that one machine writes
    assert on_s3["scored"] == on_s3["rows"]["test"]


@pytest.mark.nightly
def test_without_s3a_the_error_names_the_package(cluster: tuple[Path, str], bucket: str) -> None:
    error = _ran(cluster, bucket, "without")["error"]
    assert "Spark cannot write to s3://" in error
    assert "set spark.conf.spark.jars.packages to org.apache.hadoop:hadoop-aws" in error
