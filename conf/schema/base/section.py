"""The base class of all sections, and the types of fields that several of them have."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
SECRET = "secret"  # noqa: S105 - the type of an error about a value that must not be shown
LOGIN = re.compile(r"(?<![^:])//(?!\[)[^/@\s]*:(?!\d{1,5}/)[^@\s]*@")
"""A user and a password, or two keys, at the beginning of an address.

A key may hold slashes. A port before a path that holds an @, and the colons of an IPv6 address, are no login.
"""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(gt=0, lt=1)]


def _as_text(path: object) -> object:
    return str(path) if isinstance(path, PurePath) else path


def _no_home(path: str) -> str:
    if path.startswith("~"):
        raise ValueError("~ means a home folder only in a shell; give the whole path")
    return path


def _no_login(place: str) -> str:
    if LOGIN.search(place):
        raise PydanticCustomError(SECRET, "a config holds no password and no key; leave them out of the address and give them to "
                                  "the store's own library, in its environment or its files (the address is not shown)")
    return place


IS_PATH = "a path"
"""Marks a type whose values are paths."""
LocalPath = Annotated[str, BeforeValidator(_as_text), AfterValidator(_no_home), AfterValidator(_no_login), IS_PATH]
"""A path or a URL. In a file, a relative path begins at the folder of that file (conf/paths.py)."""


class Section(BaseModel):
    """Base of all sections: immutable, and strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def changed(self, **values: object) -> Self:
        """A copy with other values, checked like a section of a file; ``model_copy`` checks nothing.

        Raises:
            ValueError: the values do not fit, or do not fit together.
        """
        return self.model_validate({name: getattr(self, name) for name in self.model_fields_set} | values)


def one_spelling(place: str) -> str:
    """A path or URL without slashes at its end: s3://bucket/prefix//dataset is not s3://bucket/prefix/dataset."""
    shorter = place.rstrip("/")
    return place if not shorter or shorter.endswith(":") else shorter
