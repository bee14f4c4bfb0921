"""A store in an S3 bucket, or on a server with S3's API.

The commit is a conditional PUT (``If-None-Match: *``): the server creates the object if its key does not exist, and
answers 412 otherwise. A server that does not support the condition would overwrite silently, so before its first commit
a store tries it on an object of its own: the second PUT must be refused.

Endpoint, region and credentials come from the places in which AWS's own tools look (environment, ``~/.aws``, the
machine's role); none of them is taken from a URL or written anywhere. Arrow's S3 client reads large files, outside
Python's lock; boto3 does everything else.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
from pyarrow import fs

from sparkring.errors import CommitConflict, ConfigError, EnvironmentProblem, StorageError
from sparkring.pipelines.data.stores.base import Entry, require_inside, require_not_all
from sparkring.pipelines.data.stores.lease import is_leased, lease
from sparkring.pipelines.data.stores.pieces import Pieces, PiecesFile

try:
    import boto3
    from boto3.exceptions import S3UploadFailedError
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError:
    raise EnvironmentProblem("s3: addresses need boto3, which is not installed; pip install 'sparkring[s3]'.") from None

CONNECT_S, READ_S, ATTEMPTS = 10.0, 60.0, 5
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MISSING = {"NoSuchKey", "404"}
_TAKEN = 412
_BUSY = 409
"""Another conditional PUT of the same key is being processed; the server asks to try again."""


class S3Store:
    """The objects of a bucket whose keys begin with a prefix."""

    def __init__(self, url: str) -> None:
        self.bucket, _, prefix = url.partition("://")[2].partition("/")
        self.prefix = prefix.strip("/")
        if not _BUCKET.fullmatch(self.bucket):  # not repeated in the message: there may be a key before an @
            raise ConfigError("an S3 address is s3://bucket/prefix, without credentials or port; an endpoint is set by AWS_ENDPOINT_URL, "
                              "credentials as for AWS's own tools.")
        self.url = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        self._client: Any = boto3.client("s3", config=Config(
            connect_timeout=CONNECT_S, read_timeout=READ_S, retries={"mode": "standard", "max_attempts": ATTEMPTS}))
        self._conditional = False

    def path(self, name: str) -> str:
        """``s3a://bucket/prefix/name``: s3a is the scheme of Hadoop's client."""
        return f"s3a://{self.bucket}/{self._key(name)}"

    def open_input(self, name: str) -> pa.NativeFile:
        """Open the object; each read is a ranged GET."""
        return self._arrow.open_input_file(f"{self.bucket}/{self._key(name)}")

    def read(self, name: str) -> bytes:
        """The bytes of ``name``."""
        with self._explained(name):
            data: bytes = self._client.get_object(Bucket=self.bucket, Key=self._key(name))["Body"].read()
        return data

    def size(self, name: str) -> int | None:
        """Bytes of the object; None if it does not exist."""
        head = self._head(name)
        return None if head is None else int(head["ContentLength"])

    def names(self, folder: str) -> list[str]:
        """Names of the objects directly inside ``folder``, sorted."""
        below = self._below(folder)
        with self._explained(folder):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=below, Delimiter="/")
            keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
        return sorted(key.removeprefix(below) for key in keys if key != below)

    def tree(self, folder: str) -> Iterator[Entry]:
        """All objects below ``folder``, a thousand in each request. A key that ends in / is a folder that some tool
        made.
        """
        below = self._below(folder)
        with self._explained(folder):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=below):
                for item in page.get("Contents", ()):
                    name = item["Key"].removeprefix(self.prefix).strip("/")
                    if item["Key"] != below:
                        yield Entry(name, item["Size"], item["LastModified"].timestamp(), item["Key"].endswith("/"))

    def check_commits(self) -> None:
        """Check that this server refuses a second conditional PUT."""
        if not self._conditional:
            self._require_conditions("commit")

    def put_if_absent(self, name: str, data: bytes) -> None:
        """One conditional PUT."""
        if not self._conditional:
            self._require_conditions(name)
        if not self._put_new(name, data):
            raise CommitConflict(f"{self.url}/{name} was committed by another writer first; nothing was changed. Read it and try again.")

    def put(self, name: str, data: bytes) -> None:
        """One PUT: readers see the old object or the new one."""
        with self._explained(name):
            self._client.put_object(Bucket=self.bucket, Key=self._key(name), Body=data)

    def put_pieces(self, name: str, pieces: Pieces) -> None:
        """One PUT, or parts that become an object when the last has arrived: one PUT holds at most 5 GB."""
        with self._explained(name):
            self._client.upload_fileobj(PiecesFile(pieces), self.bucket, self._key(name))

    def upload(self, source: Path, name: str) -> None:
        """One PUT, or parts that become an object when the last has arrived."""
        with self._explained(name):
            self._client.upload_file(str(source), self.bucket, self._key(name))

    def move(self, source: str, target: str) -> None:
        """Copy on the server, then delete."""
        with self._explained(source):
            self._client.copy({"Bucket": self.bucket, "Key": self._key(source)}, self.bucket, self._key(target))
            self._client.delete_object(Bucket=self.bucket, Key=self._key(source))

    def delete(self, name: str) -> None:
        """Delete the object of that name and all below it, a thousand in each request."""
        require_not_all(name, self.url)
        with self._explained(name):
            self._client.delete_object(Bucket=self.bucket, Key=self._key(name))
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._below(name)):
                keys = [{"Key": item["Key"]} for item in page.get("Contents", ())]
                if keys:
                    answer = self._client.delete_objects(Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True})
                    for error in answer.get("Errors", ()):
                        raise StorageError(f"s3://{self.bucket}/{error['Key']} was not deleted: {error.get('Message')}; run it again.")

    def lock(self, name: str, *, busy: str, lost: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
        """Hold a lease, since S3 has no lock that a dying process frees."""
        return lease(self, name, busy=busy, lost=lost)

    def is_locked(self, name: str) -> bool:
        """Whether a process renews the lease ``name``."""
        return is_leased(self, name)

    @cached_property
    def _arrow(self) -> fs.S3FileSystem:
        """Arrow's client, at the endpoint that boto3 found; it finds credentials on its own, in the same places."""
        endpoint = urlparse(self._client.meta.endpoint_url)
        aws = (endpoint.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
        region = bucket_region(self._client, self.bucket) if aws else self._client.meta.region_name
        return fs.S3FileSystem(region=region, connect_timeout=CONNECT_S, request_timeout=READ_S,
                               **({} if aws else {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme}))

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{require_inside(name, self.url)}".strip("/")

    def _below(self, folder: str) -> str:
        key = self._key(folder)
        return f"{key}/" if key else ""

    def _head(self, name: str) -> dict[str, Any] | None:
        try:
            with self._explained(name):
                head: dict[str, Any] = self._client.head_object(Bucket=self.bucket, Key=self._key(name))
        except FileNotFoundError:
            return None
        return head

    def _put_new(self, name: str, data: bytes) -> bool:
        """Create the object; False if another writer has created it.

        boto3 repeats a request whose answer was lost, and then finds its own object. So each object's metadata names
        its writer.
        """
        writer = uuid.uuid4().hex
        for _ in range(ATTEMPTS):
            try:
                with self._explained(name):
                    self._client.put_object(Bucket=self.bucket, Key=self._key(name), Body=data, IfNoneMatch="*",
                                            Metadata={"writer": writer})
                return True
            except StorageError as error:
                status = _status(error.__cause__)
                if status == _TAKEN:
                    head = self._head(name)
                    return head is not None and head["Metadata"].get("writer") == writer
                if status != _BUSY:
                    raise
        raise StorageError(f"{self.url}/{name}: {ATTEMPTS} attempts met other writers of the same name; read the object and try again.")

    def _require_conditions(self, name: str) -> None:
        """Check on an object beside ``name`` that this server refuses a second PUT."""
        probe = f"{name}.{uuid.uuid4().hex}.probe"
        try:
            refuses = self._put_new(probe, b"") and not self._put_new(probe, b"")
        finally:
            self.delete(probe)
        if not refuses:
            raise EnvironmentProblem(f"the S3 server of {self.url} ignores If-None-Match: two writers could both commit; "
                                     "use a server with conditional writes (recent releases of AWS S3, MinIO, Ceph and others).")
        self._conditional = True

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turn errors of the client into ours, which name the address."""
        try:
            yield
        except (ClientError, BotoCoreError, S3UploadFailedError) as error:
            if isinstance(error, ClientError) and error.response["Error"]["Code"] in _MISSING:
                raise FileNotFoundError(f"{self.url}/{name} does not exist") from None
            raise StorageError(f"{self.url}/{name}: {error}; check that the bucket exists, and that endpoint and credentials "
                               "(AWS_ENDPOINT_URL, AWS_PROFILE, AWS_ACCESS_KEY_ID, ...) are right.") from error


def bucket_region(client: Any, bucket: str) -> str:
    """The region of a bucket of AWS; boto3's own if S3 does not tell.

    boto3 knows the default region at first, and follows S3 to the bucket's; Arrow's client does not follow.
    """
    try:
        answer = client.head_bucket(Bucket=bucket)
    except ClientError as error:  # one who may not ask is told the region in the refusal
        answer = error.response
    except BotoCoreError:
        answer = {}
    told = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region")
    return str(answer.get("BucketRegion") or told or client.meta.region_name)


def _status(error: BaseException | None) -> int | None:
    return error.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(error, ClientError) else None
