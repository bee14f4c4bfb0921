"""From a URL to its store.

    path, file:///path      local or mounted folders            local.py
    /Volumes/c/s/v/path     Unity Catalog volumes               volume.py    also dbfs:/Volumes/..., file:///Volumes/...
    s3://bucket/prefix      S3, and servers with its API        s3.py
    hdfs://host:port/path   HDFS, over WebHDFS                  hdfs.py
    gs://, abfs://, ...     other file systems of fsspec        fsspec.py

docs/reference/stores.md says how each kind commits. A kind is imported when it is opened: its client library may be
missing.
"""

from __future__ import annotations

import re
from urllib.parse import urlparse

from sparkring.pipelines.data.stores.base import Store, local_path

_SPARKS_VOLUME = r"dbfs:(//)?/Volumes/"
"""The beginning of a volume's address in the form that Databricks shows to Spark."""


def open_store(url: str, *, one_writer: bool = False) -> Store:
    """Open the folder at ``url``: a plain path or a URL of one of the schemes above.

    Opening sends no request: the first operation shows whether a bucket or a name node answers.

    Args:
        url: Path or URL.
        one_writer: Nobody else commits there, so a store that could not refuse a second writer may commit, too.
    Raises:
        ConfigError: no store has this scheme, or the URL lacks something.
        EnvironmentProblem: the client library of that scheme is not installed.
    """
    parsed = urlparse(url)
    if parsed.scheme in ("", "file"):
        from sparkring.pipelines.data.stores.local import LocalStore
        from sparkring.pipelines.data.stores.volume import VolumeStore, is_volume

        path = local_path(url).absolute()
        return VolumeStore(str(path)) if is_volume(path) else LocalStore(path)
    if re.match(_SPARKS_VOLUME, url):
        from sparkring.pipelines.data.stores.volume import VolumeStore

        return VolumeStore(re.sub(_SPARKS_VOLUME, "/Volumes/", url))
    if parsed.scheme in ("s3", "s3a"):
        from sparkring.pipelines.data.stores.s3 import S3Store

        return S3Store(url)
    if parsed.scheme == "hdfs":
        from sparkring.pipelines.data.stores.hdfs import HdfsStore

        return HdfsStore(url)
    from sparkring.pipelines.data.stores.fsspec import FsspecStore

    return FsspecStore(url, one_writer=one_writer)
