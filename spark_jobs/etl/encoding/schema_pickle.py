"""Writing Petastorm's schema as the pickle that its format asks for, without Petastorm, pyspark or NumPy.

A pickle is a program of a stack machine. This one is written opcode by opcode: it names the classes, and nothing here
imports them. The same fields give the same bytes, whatever is installed, and every Python and NumPy can read them::

    Unischema.__dict__ = {"_name": "train", "_fields": OrderedDict(km=FIELD), "km": FIELD}
    FIELD = UnischemaField("km", numpy.float32, (), ScalarCodec(FloatType()), False)

``unischema_pickle.py`` reads such a pickle without running it.
Source of the classes' attributes: petastorm 0.13.1, ``unischema.py`` and ``codecs.py``; of the opcodes: Python's ``pickletools``.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Sequence
from typing import assert_never

from sparkring.pipelines.data.dataset.row_schema import DataField

SPARK_TYPES = {
    "int8": "ByteType", "int16": "ShortType", "int32": "IntegerType", "int64": "LongType",
    "uint8": "ShortType", "uint16": "IntegerType", "uint32": "LongType",  # Spark has none unsigned
    "float16": "FloatType", "float32": "FloatType", "float64": "DoubleType", "bool": "BooleanType",
}
"""The class in ``pyspark.sql.types`` that holds a scalar field's column."""
UNISCHEMA_NAMES = frozenset({"fields", "create_schema_view", "as_spark_schema", "make_namedtuple", "make_namedtuple_tf",
                             "from_arrow_schema"})
"""Petastorm's Unischema has these itself, so no attribute for a field of that name."""
_PROTOCOL = 2  # the first that creates objects by their class, and so the oldest that is short
_QUALITY = 80  # Petastorm's own, of jpeg; no reader uses it


def pickled_unischema(name: str, fields: Sequence[DataField]) -> bytes:
    """Describe the files as Petastorm does: numpy type, shape and codec of each field.

    Args:
        name: Of the schema; Petastorm shows it, and names its rows' class by it.
        fields: The columns.
    Returns:
        What Petastorm unpickles to an object equal to ``Unischema(name, [UnischemaField(...), ...])``.
    """
    numbered = list(enumerate(fields))
    described = ((field.name, _field(field) + _put(number)) for number, field in numbered)
    attributes = ((field.name, _get(number)) for number, field in numbered if field.name not in UNISCHEMA_NAMES)
    by_name = _class("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE + _items(described)
    schema = _object("petastorm.unischema", "Unischema", state=[("_name", _text(name)), ("_fields", by_name), *attributes])
    return pickle.PROTO + bytes([_PROTOCOL]) + schema + pickle.STOP


def _field(field: DataField) -> bytes:
    dtype = _class("numpy", "bool_" if field.dtype == "bool" else field.dtype)  # NumPy 1 has no class numpy.bool
    values = _tuple(_text(field.name), dtype, _tuple(*map(_size, field.shape)), _codec(field),
                    pickle.NEWTRUE if field.nullable else pickle.NEWFALSE)
    return _object("petastorm.unischema", "UnischemaField", values=values)


def _codec(field: DataField) -> bytes:
    match field.codec:
        case "scalar":
            kind = _object("pyspark.sql.types", SPARK_TYPES[field.dtype])
            return _object("petastorm.codecs", "ScalarCodec", state=[("_spark_type", kind)])
        case "ndarray":
            return _object("petastorm.codecs", "NdarrayCodec")
        case "compressed_ndarray":
            return _object("petastorm.codecs", "CompressedNdarrayCodec")
        case "png" | "jpeg":
            return _object("petastorm.codecs", "CompressedImageCodec",
                           state=[("_image_codec", _text(f".{field.codec}")), ("_quality", _size(_QUALITY))])
        case _:
            assert_never(field.codec)


def _object(module: str, name: str, *, values: bytes = pickle.EMPTY_TUPLE, state: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """An object of a class made of ``values``, with ``state`` as its attributes."""
    attributes = pickle.EMPTY_DICT + _items(state) + pickle.BUILD if state else b""
    return _class(module, name) + values + pickle.NEWOBJ + attributes


def _class(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode("ascii")


def _items(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Set the items of the dictionary on the stack."""
    return pickle.MARK + b"".join(_text(key) + value for key, value in pairs) + pickle.SETITEMS


def _tuple(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE


def _text(text: str) -> bytes:
    data = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def _size(number: int | None) -> bytes:
    return pickle.NONE if number is None else pickle.LONG1 + b"\x08" + struct.pack("<q", number)


def _put(number: int) -> bytes:
    """Remember what is on the stack."""
    return pickle.LONG_BINPUT + struct.pack("<I", number)


def _get(number: int) -> bytes:
    return pickle.LONG_BINGET + struct.pack("<I", number)
