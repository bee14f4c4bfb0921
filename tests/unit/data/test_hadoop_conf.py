"""Where name nodes are, by Hadoop's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkring.errors import ConfigError
from sparkring.pipelines.data.stores.hadoop_conf import name_nodes, read_hadoop_conf
from sparkring.pipelines.data.stores.open import open_store

DEFAULT = {"fs.defaultFS": "hdfs://nn:8020"}
HA = {"dfs.nameservices": "prod", "dfs.ha.namenodes.prod": "a, b", "dfs.namenode.http-address.prod.a": "h1:9870",
      "dfs.namenode.http-address.prod.b": "h2:9870", "dfs.namenode.https-address.prod.a": "h1:9871"}


@pytest.mark.parametrize(("authority", "conf", "web"), [
    pytest.param("nn:8020", {}, ("nn:9870",), id="no configuration: Hadoop's own port"),
    pytest.param("", DEFAULT, ("nn:9870",), id="the default file system"),
    pytest.param("nn:8020", {**DEFAULT, "dfs.namenode.http-address": "web:50070"}, ("web:50070",), id="a port of its own"),
    pytest.param("nn:8020", {**DEFAULT, "dfs.namenode.http-address": "0.0.0.0:50070"}, ("nn:50070",), id="bound to all interfaces"),
    pytest.param("far:8020", {**DEFAULT, "dfs.namenode.http-address": "web:50070"}, ("far:9870",), id="another cluster"),
    pytest.param("nn:8020", {**DEFAULT, "dfs.http.policy": "HTTPS_ONLY"}, ("nn:9871",), id="https only"),
    pytest.param("prod", HA, ("h1:9870", "h2:9870"), id="a name service of two"),
    pytest.param("prod", {**HA, "dfs.http.policy": "HTTPS_ONLY"}, ("h1:9871",), id="a name service, https only"),
])
def test_name_nodes_are_found(authority: str, conf: dict[str, str], web: tuple[str, ...]) -> None:
    found = name_nodes(authority, conf)
    assert (found.web, found.https) == (web, conf.get("dfs.http.policy") == "HTTPS_ONLY")
    assert found.authority == (authority or "nn:8020")
    assert not found.kerberos


def test_kerberos_is_seen() -> None:
    assert name_nodes("nn:8020", {"hadoop.security.authentication": "kerberos"}).kerberos


@pytest.mark.parametrize("default", [{}, {"fs.defaultFS": "file:///"}])
def test_no_default_file_system_in_hdfs_is_said(default: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"fs\.defaultFS does not name one in HDFS"):
        name_nodes("", default)


def test_site_files_are_read_where_the_environment_says(tmp_path: Path) -> None:
    assert read_hadoop_conf({}) == {}
    assert read_hadoop_conf({"HADOOP_CONF_DIR": str(tmp_path)}) == {}
    for name, key, value in (("core-site.xml", "fs.defaultFS", " hdfs://nn:8020\n"), ("hdfs-site.xml", "dfs.replication", "2")):
        (tmp_path / name).write_text(f"<configuration><property><name>{key}</name><value>{value}</value></property></configuration>")
    assert read_hadoop_conf({"HADOOP_CONF_DIR": str(tmp_path)}) == {**DEFAULT, "dfs.replication": "2"}
    (tmp_path / "hdfs-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match=r"hdfs-site\.xml is not XML"):
        read_hadoop_conf({"HADOOP_CONF_DIR": str(tmp_path)})


@pytest.mark.parametrize("url", ["hdfs://nn:8020", "hdfs://nn:8020/", "hdfs:/data"])
def test_an_address_without_a_folder_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address on HDFS; give hdfs://host:port/path"):
        open_store(url)
