"""Petastorm's schema is read from its pickle, and no pickle can make the reading do anything else."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from petastorm.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from petastorm.etl.legacy import restricted_loads
from petastorm.unischema import Unischema, UnischemaField
from pyspark.sql import types

from sparkring.errors import DatasetError, HostileDataset
from sparkring.pipelines.data.dataset.unischema_pickle import ALLOWED, Inert, PetastormField, read_unischema

SCHEMA = Unischema("Example", [
    UnischemaField("id", np.int64, (), ScalarCodec(types.LongType()), False),
    UnischemaField("km", np.float32, (), None, True),
    UnischemaField("city", np.str_, (), ScalarCodec(types.StringType()), True),
    UnischemaField("price", Decimal, (), ScalarCodec(types.DecimalType(10, 2)), False),
    UnischemaField("photo", np.uint8, (28, 28, 3), CompressedImageCodec("png"), False),
    UnischemaField("snap", np.uint8, (None, None), CompressedImageCodec("jpeg", 90), False),
    UnischemaField("track", np.float64, (None, 3), NdarrayCodec(), False),
    UnischemaField("mask", np.bool_, (8,), CompressedNdarrayCodec(), False)])
FIELDS = (
    PetastormField("id", "int64", (), "scalar", nullable=False), PetastormField("km", "float32", (), "scalar", nullable=True),
    PetastormField("city", "str_", (), "scalar", nullable=True), PetastormField("price", "Decimal", (), "scalar", nullable=False),
    PetastormField("photo", "uint8", (28, 28, 3), "png", nullable=False),
    PetastormField("snap", "uint8", (None, None), "jpeg", nullable=False),
    PetastormField("track", "float64", (None, 3), "ndarray", nullable=False),
    PetastormField("mask", "bool", (8,), "compressed_ndarray", nullable=False))

_heard: list[str] | None = None


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _heard is not None and event in {"pickle.find_class", "import", "os.system", "os.exec", "subprocess.Popen", "exec", "compile",
                                        "open", "os.remove", "os.mkdir"}:
        _heard.append(f"{event} {arguments[:2]}")


sys.addaudithook(_hear)  # Python's own: it cannot be taken away again, so it only listens while a test asks it to


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What Python itself reports of imports, calls and files while the test runs."""
    global _heard  # noqa: PLW0603
    _heard = []
    try:
        yield _heard
    finally:
        _heard = None


class Calls:
    """Pickles as a call of ``function``."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def _named(module: str, name: str) -> bytes:
    """A pickle that calls ``module.name()``."""
    return b"\x80\x04" + b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93)R."


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_real_schema_is_read_at_every_protocol(protocol: int) -> None:
    assert read_unischema(pickle.dumps(SCHEMA, protocol), origin="x") == FIELDS


def test_a_schema_written_beside_the_other_numpy_is_read() -> None:
    """NumPy 2 names its truth values bool, NumPy 1 bool_."""
    as_one, as_two = (pickle.dumps(SCHEMA, 0).replace(b"cnumpy\nbool_\n", name).replace(b"cnumpy\nbool\n", name)
                      for name in (b"cnumpy\nbool_\n", b"cnumpy\nbool\n"))
    assert as_one != as_two
    assert read_unischema(as_one, origin="x") == read_unischema(as_two, origin="x") == FIELDS


def test_nothing_is_imported_or_looked_up_even_for_a_right_one(heard: list[str]) -> None:
    data = pickle.dumps(SCHEMA)
    heard.clear()
    read_unischema(data, origin="x")
    assert heard == []


def test_control_petastorm_s_own_restricted_reader_looks_names_up(heard: list[str]) -> None:
    data = pickle.dumps(SCHEMA)
    heard.clear()
    restricted_loads(data)
    assert any(event.startswith("pickle.find_class") for event in heard)


OUTSIDE = [("os", "system"), ("posix", "system"), ("subprocess", "Popen"), ("builtins", "eval"), ("builtins", "exec"),
           ("builtins", "getattr"), ("builtins", "__import__"), ("__builtin__", "eval"), ("numpy", "load"), ("numpy", "fromfile"),
           ("numpy.core.multiarray", "_reconstruct"), ("petastorm.utils", "run_in_subprocess"), ("petastorm.unischema", "np.load"),
           ("petastorm.unischema", "sys.exit"), ("pyspark.sql.types", "_parse_datatype_json_string"), ("collections", "namedtuple"),
           ("collections.OrderedDict", "__init__"), ("copyreg", "__newobj__"), ("functools", "partial"), ("decimal", "getcontext"),
           ("torch", "load"), ("importlib", "import_module"), ("shutil", "rmtree"), ("pickle", "loads"), ("", "")]


@pytest.mark.parametrize(("module", "name"), OUTSIDE)
def test_any_other_name_is_refused_and_not_looked_up(module: str, name: str, heard: list[str]) -> None:
    assert (module, name) not in ALLOWED
    with pytest.raises(HostileDataset, match="which no dataset needs; nothing of it was run"):
        read_unischema(_named(module, name), origin="a/_common_metadata")
    assert heard == []


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_schema_that_carries_a_call_is_refused_and_the_call_has_no_effect(protocol: int, tmp_path: Path, heard: list[str]) -> None:
    schema = Unischema("Evil", [UnischemaField("id", np.int64, (), Calls(Path.touch, tmp_path / "run"), False)])
    data = pickle.dumps(schema, protocol)
    heard.clear()
    with pytest.raises(HostileDataset):
        read_unischema(data, origin="x")
    assert heard == []
    assert not (tmp_path / "run").exists()
    pickle.loads(data)  # the control: opened as the format asks for, it does run
    assert (tmp_path / "run").exists()


def test_allowed_names_are_never_the_real_things() -> None:
    for module, name in ALLOWED:
        with pytest.raises(DatasetError) as raised:  # called, each gives an object that is no schema, and nothing happens
            read_unischema(_named(module, name), origin="x")
        assert not isinstance(raised.value, HostileDataset)
    assert vars(Inert)["origin"] == ""


def test_one_pickle_leaves_nothing_behind_for_the_next() -> None:
    set_on_class = b"\x80\x04\x8c\x13petastorm.unischema\x8c\x09Unischema\x93N}\x8c\x06origin\x8c\x02xx\x73\x86b."
    with pytest.raises(DatasetError):
        read_unischema(set_on_class, origin="x")
    assert read_unischema(pickle.dumps(SCHEMA), origin="x") == FIELDS


@pytest.mark.parametrize("data", [
    pytest.param(b"", id="nothing"), pytest.param(b"not a pickle", id="text"), pytest.param(pickle.dumps({"a": 1}), id="a dict"),
    pytest.param(pickle.dumps(SCHEMA)[:-30], id="cut off"),
    pytest.param(b"\x80\x04Nr\xff\xff\xff\x7f.", id="a memo index that would take 16 GB"),
    pytest.param(b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00.", id="a length beyond its end"),
    pytest.param(b"\x80\x04" + b"(" * 100_000 + b"t" * 100_000 + b".", id="deeply nested"),
    pytest.param(b"\x80\x02Q.", id="a persistent id"),
])
def test_what_is_no_schema_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(DatasetError, match=r"does not hold a Petastorm schema|persistent"):
        read_unischema(data, origin="x")


def test_a_flipped_byte_anywhere_ends_in_a_schema_or_an_error_of_ours() -> None:
    data = pickle.dumps(SCHEMA)
    chance = np.random.default_rng(0)
    refused = 0
    for _ in range(3000):
        torn = bytearray(data)
        torn[chance.integers(len(data))] = chance.integers(256)
        try:
            read_unischema(bytes(torn), origin="x")
        except DatasetError:  # any other error fails the test
            refused += 1
    assert 0 < refused < 3000
