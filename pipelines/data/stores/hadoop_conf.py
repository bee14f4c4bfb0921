"""The HTTP addresses of a cluster's name nodes, from the cluster's own configuration files.

Reads ``core-site.xml`` and ``hdfs-site.xml`` in ``$HADOOP_CONF_DIR``, as Hadoop's own tools, Spark and YARN's
containers do; everything else is pure. Imports nothing of Hadoop.

Source: https://hadoop.apache.org/docs/r3.4.1/hadoop-project-dist/hadoop-hdfs/hdfs-default.xml and
HDFSHighAvailabilityWithQJM.html
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse
from xml.etree import ElementTree as ET

from sparkring.errors import ConfigError

HTTP_PORT, HTTPS_PORT = 9870, 9871


@dataclass(frozen=True)
class NameNodes:
    """The addresses and settings by which a client reaches a name service."""

    authority: str
    """Host and port, or the logical name, as in ``hdfs:`` addresses."""
    web: tuple[str, ...]
    """``host:port`` of each name node's web server; one of them is active."""
    https: bool
    kerberos: bool


def read_hadoop_conf(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All properties of the site files; none if ``HADOOP_CONF_DIR`` is not set, or names a folder without them.

    Raises:
        ConfigError: a file is not XML.
    """
    folder = environment.get("HADOOP_CONF_DIR")
    properties: dict[str, str] = {}
    for name in ("core-site.xml", "hdfs-site.xml") if folder else ():
        path = Path(str(folder)) / name
        if not path.is_file():
            continue
        try:
            root = ET.parse(path).getroot()  # noqa: S314 - the operator's own file, which Hadoop trusts as well
        except ET.ParseError as error:
            raise ConfigError(f"{path} is not XML: {error}; correct it, or point HADOOP_CONF_DIR elsewhere.") from None
        for entry in root.iter("property"):
            properties[(entry.findtext("name") or "").strip()] = (entry.findtext("value") or "").strip()
    return properties


def name_nodes(authority: str, conf: Mapping[str, str]) -> NameNodes:
    """Find the web addresses of the name service that an ``hdfs:`` URL means.

    Args:
        authority: ``host:port``, a logical name, or empty for the default file system.
        conf: Hadoop's properties.
    Raises:
        ConfigError: the authority is empty, and the default file system is not in HDFS.
    """
    default = urlparse(conf.get("fs.defaultFS", ""))
    if not authority and default.scheme != "hdfs":
        raise ConfigError("hdfs:/// means the default file system, but fs.defaultFS does not name one in HDFS; "
                          "write hdfs://host:port/path, or set HADOOP_CONF_DIR.")
    authority = authority or default.netloc
    https = conf.get("dfs.http.policy") == "HTTPS_ONLY"
    key = f"dfs.namenode.{'https' if https else 'http'}-address"
    nodes = _split(conf.get(f"dfs.ha.namenodes.{authority}", ""))
    if nodes:
        web = tuple(conf[f"{key}.{authority}.{node}"] for node in nodes if f"{key}.{authority}.{node}" in conf)
    elif key in conf and authority in (default.netloc, conf.get("dfs.namenode.rpc-address")):
        web = (conf[key],)
    else:
        web = ()
    host = authority.partition(":")[0]
    web = tuple(_reachable(address, host) for address in web) or (f"{host}:{HTTPS_PORT if https else HTTP_PORT}",)
    return NameNodes(authority=authority, web=web, https=https, kerberos=conf.get("hadoop.security.authentication") == "kerberos")


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _reachable(address: str, host: str) -> str:
    """The address, with ``host`` for 0.0.0.0, by which a server means all its interfaces."""
    return address.replace("0.0.0.0:", f"{host}:", 1) if address.startswith("0.0.0.0:") else address
