"""Where rows come from: ``prepare.sources``, told apart by ``format``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self
from urllib.parse import unquote

from pydantic import Discriminator, Field, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sparkring.conf.schema.base.section import SECRET, LocalPath, Section

_SECRET_INSIDE = re.compile(r"(key|secret|token|passw|pwd|credential)[\w.-]*\s*=|//[^/@]*:[^/@]*@|:[^/:@]+/[^/@]+@", re.IGNORECASE)
"""An option named like a secret, or a user with a password before a host."""


class SourceConfig(Section):
    """One table that the query reads."""

    path: LocalPath
    """A file, folder or URL that Spark can read, or ``package:NAME/FILE`` for a file inside an installed Python
    package."""
    format: Literal["csv", "parquet", "json", "orc", "avro", "images", "idx", "text"] = "csv"
    """Format of the data. ``json`` is one object per line; ``avro`` needs Spark's jar for it. ``images``, ``idx``
    (the MNIST family) and ``text`` are folders of files, and have columns of their own: ``path, label, image``; ``id,
    part, label, image``; ``path, content``."""
    columns: dict[str, str] = {}
    """The columns of a table to read and their Spark SQL types, e.g. ``{distance: double}``. Other columns of the
    file are ignored. Default: all columns, as the file types them. Files of csv and json say no types, so they need it."""
    pattern: str = "*"
    """Names of the files to read in a folder of images or texts, e.g. ``*.py``. Texts of a pattern that ends in ``.gz`` are
    unpacked."""
    if_missing: str = ""
    """Advice for the error if ``path`` does not exist."""
    separator: Annotated[str, Field(min_length=1, max_length=1, pattern=r'[^"\r\n]')] = ","
    """The character between the values of a CSV, e.g. ``";"`` or ``"\\t"``."""
    null_value: str = ""
    """Text that stands for a missing value in CSV, e.g. ``NA``."""
    multi_line: bool = False
    """Whether a quoted CSV value may hold line breaks; each file is then read by one task."""
    encoding: Literal["UTF-8", "ISO-8859-1", "UTF-16"] = "UTF-8"
    """Character encoding of a CSV. Each file in UTF-16 is read by one task."""

    @model_validator(mode="after")
    def _columns_fit_the_format(self) -> Self:
        if self.columns and self.format in ("images", "idx", "text"):
            raise ValueError(f"format {self.format} has fixed columns; name none")
        if not self.columns and self.format in ("csv", "json"):
            raise ValueError(f"format {self.format} needs columns; name each with its type")
        return self


class TableSource(Section):
    """A table or view that the Spark session knows by name: of Hive, of another catalog, or temporary."""

    format: Literal["table"]
    table: str
    """E.g. ``shop.orders``. It is read once more than a file, to identify its content by a digest."""
    columns: dict[str, str] = {}
    """The columns to read and their Spark SQL types. Default: all, as the table types them."""


class JdbcSource(Section):
    """The result of a database query. The database's driver must be on Spark's class path (``spark.jars.packages``)."""

    format: Literal["jdbc"]
    url: str
    """E.g. ``jdbc:postgresql://host/shop``. It holds no user and no password: those come from the environment."""
    query: str
    """In the database's SQL. It runs once more than needed, to identify its result by a digest."""
    user_env: str | None = None
    """Environment variable of the driver program that holds the user's name."""
    password_env: str | None = None
    """Environment variable of the driver program that holds the password. It goes to the database and nowhere else."""
    driver: str | None = None
    """Java class of the driver. Java does not find a driver from ``spark.jars.packages`` by the URL alone."""
    columns: dict[str, str] = {}
    """The columns to read and their Spark SQL types. Default: all, as the table types them."""

    @field_validator("url")
    @classmethod
    def _no_secret_inside(cls, url: str) -> str:
        forms = [url]
        while (plain := unquote(forms[-1])) != forms[-1]:  # a driver reads pass%77ord as password
            forms.append(plain)
        if any(map(_SECRET_INSIDE.search, forms)):
            raise PydanticCustomError(SECRET, "a config holds no password; leave user and password out of the URL and set "
                                      "user_env and password_env to the names of environment variables (the URL is not shown)")
        return url


class DeltaSource(Section):
    """A version of a Delta table. You provide Delta's jar and session settings (docs/how-to/preparing.md)."""

    format: Literal["delta"]
    path: LocalPath
    """Folder or URL of the table."""
    version: Annotated[int, Field(ge=0)] | None = None
    """The version to read; later ones change nothing. Null: the latest one; the manifest says which it was."""
    columns: dict[str, str] = {}
    """The columns to read and their Spark SQL types. Default: all, as the table types them."""


class IcebergSource(Section):
    """A snapshot of an Iceberg table. You provide Iceberg's jar and catalog (docs/how-to/preparing.md)."""

    format: Literal["iceberg"]
    table: str
    """Catalog, database and name, e.g. ``lake.shop.orders``."""
    snapshot_id: int | None = None
    """The snapshot to read; later ones change nothing. Null: the latest one; the manifest says which it was."""
    columns: dict[str, str] = {}
    """The columns to read and their Spark SQL types. Default: all, as the table types them."""


StoredTable = TableSource | JdbcSource | DeltaSource | IcebergSource
"""Sources that are tables rather than files named by the config."""


def kind_of_source(value: object) -> str:
    """The format of a source that is a table; ``csv`` stands for all kinds of files."""
    given = value.get("format") if isinstance(value, Mapping) else getattr(value, "format", None)
    return str(given) if given in ("table", "jdbc", "delta", "iceberg") else "csv"


AnySource = Annotated[
    Annotated[SourceConfig, Tag("csv")] | Annotated[TableSource, Tag("table")] | Annotated[JdbcSource, Tag("jdbc")]
    | Annotated[DeltaSource, Tag("delta")] | Annotated[IcebergSource, Tag("iceberg")], Discriminator(kind_of_source)]
"""Any source of the query, told apart by ``format``."""
