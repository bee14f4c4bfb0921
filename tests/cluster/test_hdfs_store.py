"""HDFS alone: the rename behind a commit, name nodes that are down, and what a store says when it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests

from sparkring.errors import CommitConflict, StorageError
from sparkring.pipelines.data.stores import webhdfs
from sparkring.pipelines.data.stores.hdfs import HdfsStore
from sparkring.pipelines.data.stores.webhdfs import WebHdfsClient
from tests.support import seams
from tests.support.hadoop import Hdfs, write_conf

pytest_plugins = ["tests.support.places"]


def _cut_off(monkeypatch: pytest.MonkeyPatch, *, done: bool) -> None:
    """Lose the name node's answer to each rename, which it did or did not do."""
    rename: Callable[..., None] = WebHdfsClient.rename

    def lost(self: WebHdfsClient, *args: str, overwrite: bool) -> None:
        if done:
            rename(self, *args, overwrite=overwrite)
        raise requests.ConnectionError("the connection broke")

    monkeypatch.setattr(seams.WEB_HDFS_CLIENT_RENAME, lost)


def test_a_commit_whose_answer_was_lost_is_still_ours(hadoop: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HdfsStore(f"{hadoop.url}/lost/answer")
    _cut_off(monkeypatch, done=True)
    store.put_if_absent("versions/1.json", b"mine")
    assert store.read("versions/1.json") == b"mine"
    _cut_off(monkeypatch, done=False)
    with pytest.raises(CommitConflict):
        store.put_if_absent("versions/1.json", b"mine")
    with pytest.raises(StorageError, match="the connection broke"):
        store.put_if_absent("versions/2.json", b"mine")
    assert store.names("versions") == ["1.json"]


def test_a_rename_without_leave_overwrites_nothing(hadoop: Hdfs) -> None:
    store = HdfsStore(f"{hadoop.url}/rename")
    for name in ("a", "b"):
        store.put(name, name.encode())
    with pytest.raises(RuntimeError, match="already exists"):
        store._client.rename("/rename/a", "/rename/b", overwrite=False)
    assert (store.read("a"), store.read("b")) == (b"a", b"b")


def test_the_next_name_node_is_asked_where_one_is_down(hadoop: Hdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web = HdfsStore(f"{hadoop.url}/any")._client.url.split("/")[2]
    names = {"fs.defaultFS": "hdfs://service", "dfs.nameservices": "service", "dfs.ha.namenodes.service": "one, two"}
    monkeypatch.setenv("HADOOP_CONF_DIR", str(write_conf(tmp_path / "conf", {
        **names, "dfs.namenode.http-address.service.one": "127.0.0.1:9", "dfs.namenode.http-address.service.two": web})))
    store = HdfsStore("hdfs:///failover")
    assert store.url == "hdfs://service/failover"
    store.put_if_absent("1.json", b"x")
    assert store.names("") == ["1.json"]
    monkeypatch.setenv("HADOOP_CONF_DIR", str(write_conf(tmp_path / "down", {
        **names, "dfs.namenode.http-address.service.one": "127.0.0.1:9", "dfs.namenode.http-address.service.two": "127.0.0.1:9"})))
    with pytest.raises(StorageError, match=r"hdfs://service/failover/1\.json: .*check that the cluster is up"):
        HdfsStore("hdfs:///failover").read("1.json")


def test_a_folder_of_somebody_else_is_named(hadoop: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    HdfsStore(f"{hadoop.url}/mine").put("a", b"x")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    with pytest.raises(StorageError, match="Permission denied: user=somebody"):
        HdfsStore(f"{hadoop.url}/mine").put("b", b"x")
    assert HdfsStore(f"{hadoop.url}/mine").names("") == ["a"]


@pytest.mark.parametrize(("ahead", "few"), [
    pytest.param(webhdfs.AHEAD_BYTES, True, id="read ahead"), pytest.param(1, False, id="without that")])
def test_rows_of_many_columns_come_in_few_requests(hadoop: Hdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int,
                                                   few: bool) -> None:
    table = pa.table({f"c{number}": range(number, number + 400) for number in range(30)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    store = HdfsStore(f"{hadoop.url}/columns")
    store.upload(tmp_path / "a.parquet", "a.parquet")
    monkeypatch.setattr(seams.WEBHDFS_AHEAD_BYTES, ahead)
    asked: list[str] = []
    call = WebHdfsClient._call

    def counted(self: WebHdfsClient, op: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(op)
        return call(self, op, *args, **kwargs)

    monkeypatch.setattr(seams.WEB_HDFS_CLIENT_CALL, counted)
    file = pq.ParquetFile(store.open_input("a.parquet"), pre_buffer=False)  # as reader.py reads
    assert pa.concat_tables([file.read_row_group(number, use_threads=False) for number in (2, 0, 3, 1)]).num_rows == 400
    assert (asked.count("OPEN") <= 6) is few, asked.count("OPEN")
