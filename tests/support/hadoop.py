"""A real HDFS of one name node and one data node on loopback, from Hadoop's own classes.

    with hdfs(folder) as cluster: ...       cluster.url is hdfs://127.0.0.1:<port>; cluster.conf_dir serves clients

pyspark's jars hold Hadoop's client; the servers come in one more jar of the same release, Hadoop's "client minicluster", and
want a class that left Java 11. Both jars are fetched once into ``~/.cache/sparkring`` and checked against the hashes below.
The first holds YARN's servers, too (yarn.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import pyspark

from harness.maven import fetched
from tests.support.daemons import DEADLINE_S, Daemon, daemon

JARS = {
    "org/apache/hadoop/hadoop-client-minicluster/3.4.2/hadoop-client-minicluster-3.4.2.jar":
        "ae2406c544825b7734b8aad4f87eff60d9ec422284f0b16c2856032083b63c77",
    "javax/xml/bind/jaxb-api/2.3.1/jaxb-api-2.3.1.jar":
        "88b955a0df57880a26a74708bc34f74dcaf8ebf4e78843a28b50eae945732b06",
}
"""Path in a Maven repository -> SHA-256. Hadoop's release is that of pyspark's own jars."""
QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a JVM that lives for a minute or two."""
NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
LOG4J = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


@dataclass(frozen=True)
class Hdfs:
    """A running file system."""

    url: str
    conf_dir: Path
    """Of clients: what HADOOP_CONF_DIR is set to."""
    data_node: Daemon
    """Its only one."""


@contextmanager
def hdfs(folder: Path) -> Iterator[Hdfs]:
    """Format and run a file system below ``folder`` for the length of the block."""
    jars = server_jars()
    common = {"dfs.replication": "1", "dfs.namenode.datanode.registration.ip-hostname-check": "false",
              "dfs.namenode.name.dir": (folder / "name").as_uri(), "dfs.datanode.data.dir": (folder / "data").as_uri(),
              "dfs.namenode.rpc-address": "127.0.0.1:0", "dfs.namenode.http-address": "127.0.0.1:0",
              "dfs.datanode.address": "127.0.0.1:0", "dfs.datanode.http.address": "127.0.0.1:0", "dfs.datanode.ipc.address": "127.0.0.1:0",
              "dfs.datanode.hostname": "127.0.0.1"}
    server = write_conf(folder / "name-conf", {**common, "fs.defaultFS": "hdfs://127.0.0.1:0"})
    subprocess.run(java_command(jars, server, NAME_NODE, "-format", "-nonInteractive"), check=True, capture_output=True, timeout=DEADLINE_S)
    with daemon(java_command(jars, server, NAME_NODE), log=folder / "namenode.log") as name_node:
        port = name_node.said(r"RPC up at: \S*?:(\d+)")
        web = name_node.said(r"Jetty bound to port (\d+)")
        client = write_conf(folder / "conf", {**common, "fs.defaultFS": f"hdfs://127.0.0.1:{port}",
                                              "dfs.namenode.rpc-address": f"127.0.0.1:{port}",
                                              "dfs.namenode.http-address": f"127.0.0.1:{web}"})
        with daemon(java_command(jars, client, DATA_NODE), log=folder / "datanode.log") as data_node:
            data_node.until(lambda: _live_data_nodes(web) or None, what="live data node")
            yield Hdfs(url=f"hdfs://127.0.0.1:{port}", conf_dir=client, data_node=data_node)


def write_conf(folder: Path, properties: Mapping[str, str]) -> Path:
    """Write a configuration folder as Hadoop reads it, all properties in both of its files; returns the folder."""
    folder.mkdir()
    for name in ("core-site.xml", "hdfs-site.xml"):
        write_site(folder / name, properties)
    (folder / "log4j2.properties").write_text(LOG4J, encoding="ascii")
    return folder


def write_site(path: Path, properties: Mapping[str, str]) -> None:
    """Write one of Hadoop's configuration files."""
    entries = "".join(f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
                      for name, value in properties.items())
    path.write_text(f"<configuration>\n{entries}</configuration>\n", encoding="utf-8")


def server_jars() -> list[Path]:
    """The jars with Hadoop's servers, fetched unless they are cached and whole."""
    return fetched(JARS)


def java_command(jars: Sequence[Path], conf_dir: Path, main_class: str, *arguments: str) -> list[str]:
    """How to start one of Hadoop's programs."""
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else Path("java")
    classes = [conf_dir, *jars, Path(pyspark.__file__).parent / "jars" / "*"]
    return [str(java), "-Xmx256m", *QUICK_JVM, "-Djava.net.preferIPv4Stack=true", "--add-opens=java.base/java.lang=ALL-UNNAMED",
            f"-Djava.io.tmpdir={conf_dir}", f"-Dlog4j2.configurationFile={conf_dir / 'log4j2.properties'}",
            "-cp", ":".join(map(str, classes)), main_class, *arguments]


def _live_data_nodes(port: str) -> int:
    query = f"http://127.0.0.1:{port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    with urllib.request.urlopen(query, timeout=DEADLINE_S) as answer:
        return int(json.load(answer)["beans"][0]["NumLiveDataNodes"])
