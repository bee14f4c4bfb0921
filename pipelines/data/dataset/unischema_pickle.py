"""Reading a dataset's Petastorm schema from the pickle in its ``_common_metadata``, without running that pickle.

A pickle is a program: it calls the functions that it names. Here it may name only the classes of a Petastorm schema,
and each name becomes an inert stand-in, which stores its arguments. So nothing of Petastorm, pyspark or NumPy is
imported or called. With any other name the folder is refused.

    petastorm.unischema.UnischemaField  ->  Inert(origin="petastorm.unischema.UnischemaField", args=("km", ...))

Source of the classes' attributes: petastorm 0.13.1, ``unischema.py`` and ``codecs.py``.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from sparkring.errors import DatasetError, HostileDataset

COMMON_METADATA = "_common_metadata"
"""The file in a Petastorm dataset's folder that makes it one: a Parquet footer without rows."""
UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
"""Petastorm's key of the pickle in that footer (petastorm 0.13.1, etl/dataset_metadata.py)."""
MOST_BYTES = 16 << 20
CODECS = {"NdarrayCodec": "ndarray", "CompressedNdarrayCodec": "compressed_ndarray", "ScalarCodec": "scalar"}
IMAGE_CODEC = "CompressedImageCodec"
_NAMES = {
    "petastorm.unischema": ("Unischema", "UnischemaField"),
    "petastorm.codecs": (*CODECS, IMAGE_CODEC),
    "pyspark.sql.types": ("ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "BooleanType", "StringType",
                          "BinaryType", "DecimalType", "DateType", "TimestampType", "ArrayType"),
    "numpy": ("dtype", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
              "bool_", "bool", "str_", "unicode_", "string_", "bytes_", "datetime64"),  # bool is NumPy 2's bool_
    "decimal": ("Decimal",),
    "builtins": ("object", "tuple"), "__builtin__": ("object", "tuple"),  # the base classes that old pickle protocols name
}
ALLOWED = frozenset((module, name) for module, names in _NAMES.items() for name in names)
"""The names that become inert stand-ins. Two more are allowed: ``collections.OrderedDict`` stands for itself, and
``copyreg._reconstructor``, with which old protocols create objects, creates stand-ins only."""


@dataclass(frozen=True)
class PetastormField:
    """One field as a Unischema describes it."""

    name: str
    dtype: str
    """NumPy's name of the type, e.g. ``int64`` or ``str_``; ``Decimal`` for decimals."""
    shape: tuple[int | None, ...]
    codec: str
    """As in ``row_schema.Codec``; of an image, whatever format OpenCV was asked for."""
    nullable: bool


def read_unischema(data: bytes, *, origin: str) -> tuple[PetastormField, ...]:
    """Read the fields of a pickled Unischema.

    Args:
        data: The pickle.
        origin: Named in errors.
    Raises:
        HostileDataset: it names something that is not part of a Unischema; nothing was imported or called.
        DatasetError: it is not a Unischema.
    """
    try:
        _require_modest(data)
        schema = _Unpickler(data, origin).load()
        return tuple(_field(item) for item in _fields(schema))
    except DatasetError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged pickle can end in almost any exception
        raise DatasetError(f"{origin} does not hold a Petastorm schema ({type(error).__name__}: {error}); "
                           "write its metadata again with petastorm-generate-metadata.py.") from None


class Inert:
    """Stands for an object of an allowed class: stores its arguments and its state, and does nothing."""

    origin = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> Self:
        """Store ``args``."""
        made = super().__new__(cls)
        made.args, made.state = args, {}
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Resolves names to stand-ins. Each pickle gets new ones, so it cannot change those of another pickle."""

    def __init__(self, data: bytes, origin: str) -> None:
        super().__init__(io.BytesIO(data))
        self._origin = origin
        self._classes: dict[tuple[str, str], type[Inert]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for an allowed name; HostileDataset for any other."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) in (("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor")):
            return self._reconstruct  # a bound method: unlike a function, a pickle can set nothing on it
        if (module, name) not in ALLOWED:
            raise HostileDataset(f"{self._origin} asks for {module}.{name}, which no dataset needs; nothing of it was run. "
                                 "Do not open this folder with software that unpickles it.")
        return self._classes.setdefault((module, name), type(name, (Inert,), {"origin": f"{module}.{name}"}))

    def persistent_load(self, pid: Any) -> Any:
        """Refuse persistent objects."""
        raise HostileDataset(f"{self._origin} asks for a persistent object, which no dataset needs; nothing of it was run.")

    def _reconstruct(self, kind: type[Inert], base: type[Inert], content: Any) -> Inert:
        """``copyreg._reconstructor`` for stand-ins: create an object of ``kind``; a tuple's items are its arguments."""
        if not issubclass(kind, Inert):
            raise TypeError(f"{kind} is not part of a schema")
        return kind(*content) if base.origin.endswith(".tuple") else kind()


def _require_modest(data: bytes) -> None:
    """Refuse opcodes that take more memory than the pickle is long, such as a memo index of 2**31."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes are more than the {MOST_BYTES} that a schema may have")
    for opcode, argument, _ in pickletools.genops(data):
        if isinstance(argument, int) and opcode.name in {"PUT", "BINPUT", "LONG_BINPUT"} and argument > len(data):
            raise ValueError(f"memo index {argument} in {len(data)} bytes")


def _fields(schema: Any) -> list[Inert]:
    if not isinstance(schema, Inert) or schema.origin != "petastorm.unischema.Unischema":
        raise TypeError("it is not a Unischema")
    return list(schema.state["_fields"].values())


def _field(field: Inert) -> PetastormField:
    if field.origin != "petastorm.unischema.UnischemaField":
        raise TypeError("a field is not a UnischemaField")
    name, dtype, shape, codec, nullable = (*field.args, *(None, False)[len(field.args) - 5:]) if len(field.args) < 5 else field.args
    if not isinstance(name, str) or not isinstance(shape, tuple) or not all(size is None or isinstance(size, int) for size in shape):
        raise TypeError(f"field {name!r} has no name or shape")
    return PetastormField(name, _dtype(dtype), shape, _codec(codec), bool(nullable))


def _dtype(value: Any) -> str:
    """The name of a NumPy type (a class), or of a dtype made from a code such as ``i8``."""
    if isinstance(value, Inert):
        return np.dtype(str(value.args[0])).name
    name = str(value.origin).rpartition(".")[2]
    return {"unicode_": "str_", "string_": "bytes_", "bool_": "bool"}.get(name, name)


def _codec(value: Inert | None) -> str:
    if value is None:
        return "scalar"
    kind = value.origin.rpartition(".")[2]
    return str(value.state["_image_codec"]).lstrip(".").replace("jpg", "jpeg") if kind == IMAGE_CODEC else CODECS[kind]
