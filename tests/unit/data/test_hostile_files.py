"""Files that somebody else wrote: crafted or damaged in any way, they are read or refused in one sentence, and run nothing.

Python itself reports what runs, by an audit hook. (ONNX files are read nowhere, so there is nothing to attack.)
"""

from __future__ import annotations

import codecs
import hashlib
import json
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from petastorm.unischema import Unischema, UnischemaField
from safetensors.torch import save

from harness.datasets import write_dataset
from sparkring.conf.loading import load_config
from sparkring.conf.schema import TabularModelConfig
from sparkring.errors import DatasetError, SparkringError
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.integrity import check_footers, verify_files
from sparkring.pipelines.data.dataset.manifest import DataFile
from sparkring.pipelines.data.dataset.unischema_pickle import read_unischema
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, CheckpointPart, Position
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.pipelines.training.job.model_files import ModelCard, load_model, save_model
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.pipelines.training.strategies.state import weights_of
from sparkring.spark_jobs import evaluate
from sparkring.spark_jobs.run.folder import RunFolder
from sparkring.spark_jobs.scoring import latest as scores
from tests.support.attackers import Payload
from tests.support.configs import MINIMAL

RUNS = frozenset({"exec", "compile", "pickle.find_class", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
                  "subprocess.Popen", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "ctypes.dlopen", "socket.connect"})
_listening: list[str] | None = None


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _listening is not None and event in RUNS:
        _listening.append(f"{event} {arguments[:2]}")


for _name in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
    codecs.lookup(_name)  # json looks whether bytes are one of these; their modules are imported by the first that are
sys.addaudithook(_hear)  # Python's own: it cannot be taken away again, so it only listens while a test asks it to


@contextmanager
def nothing_runs() -> Iterator[None]:
    global _listening  # noqa: PLW0603
    heard: list[str] = []
    _listening = heard
    try:
        yield
    finally:
        _listening = None
    assert heard == []


@dataclass(frozen=True)
class Kind:
    """One kind of file: where a good one lies, and what reads it."""

    file: str
    read: Callable[[Path], object]


def _read_rows(folder: Path) -> list[Any]:
    dataset = Dataset(str(folder / "dataset"))
    manifest = dataset.manifest()
    files = [file for split in manifest.splits.values() for file in split.files]
    if check_footers(dataset.store, manifest, files) or verify_files(dataset.store, manifest):
        raise DatasetError("findings")
    reader = SplitReader(dataset.store, manifest, "train")
    return [reader.read(0, 0, 40, np.arange(40))]


def _read_footer(folder: Path) -> object:
    """What a run asks before its first step, where the attacker has written the manifest too."""
    dataset = Dataset(str(folder / "dataset"))
    manifest = dataset.manifest()
    path = folder / "dataset" / FOOTER
    ours = DataFile(path=FOOTER, bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), row_groups=(40, 30),
                    row_group_bytes=manifest.splits["train"].files[0].row_group_bytes)
    check_footers(dataset.store, manifest, [ours])
    split = manifest.splits["train"].model_copy(update={"files": (ours,)})
    reader = SplitReader(dataset.store, manifest.model_copy(update={"splits": {"train": split}}), "train")
    return reader.read(0, 0, 40, np.arange(40))


def _read_checkpoint(folder: Path) -> object:
    found, damaged = Checkpoints(str(folder / "runs/first")).latest()
    Checkpoints(str(folder / "runs/first")).best()
    return weights_of(found.state) if found else damaged


def _read_state(folder: Path) -> object:
    """A part whose hash is right, because the attacker has written that too."""
    return weights_of([(folder / "state.safetensors").read_bytes()])


def _read_weights(folder: Path) -> object:
    """The same of a model."""
    data = (folder / "weights.safetensors").read_bytes()
    card = json.loads((folder / "runs/first/model/model.json").read_bytes())
    card["weights_sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "runs/first/model" / f"weights-{card['weights_sha256'][:16]}.safetensors").write_bytes(data)
    (folder / "runs/first/model/model.json").write_text(json.dumps(card), encoding="utf-8")
    return load_model(str(folder / "runs/first"))


FOOTER = "data/d1/train/part-0.parquet"
KINDS = {
    "manifest": Kind("dataset/versions/1.json", _read_rows),
    "Parquet": Kind(f"dataset/{FOOTER}", _read_rows),
    "Parquet that the manifest agrees with": Kind(f"dataset/{FOOTER}", _read_footer),
    "checkpoint": Kind("runs/first/checkpoints/5-0.json", _read_checkpoint),
    "state": Kind("state.safetensors", _read_state),
    "model card": Kind("runs/first/model/model.json", lambda folder: load_model(str(folder / "runs/first"))),
    "weights that the card agrees with": Kind("weights.safetensors", _read_weights),
    "config": Kind("config.yaml", lambda folder: load_config(str(folder / "config.yaml"))),
    "events": Kind("runs/first/events/0-0.jsonl", lambda folder: list(read_events(str(folder / "runs/first")))),
    "result": Kind("runs/first/result.json", lambda folder: RunFolder(str(folder / "runs/first")).result()),
    "evaluation": Kind("runs/first/evaluation.json",
                       lambda folder: evaluate._evaluated(LocalStore(folder / "runs/first"), "evaluation.json")),
    "unischema": Kind("unischema.pickle", lambda folder: read_unischema((folder / "unischema.pickle").read_bytes(), origin="x")),
}
HOSTILE_TEXTS = [
    b"", b"\0" * 100, b"[" * 20_000, b'{"a":' * 20_000, b"9" * 5000, b'{"format": NaN}', b"null", b'"text"', b'\xff\xfe{"a": 1}',
    b'{"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, {"py/tuple": ["true"]}]}',
    b'{"__class__": "os.system", "__reduce__": ["os.system", ["true"]]}', b"!!python/object/apply:os.system ['true']",
    b"a: !!python/name:os.system", b"!!python/object/new:subprocess.Popen [['true']]", b"&a [*a, *a]", b"{{ ''.__class__ }}: 1",
    pickle.dumps(Payload(Path("unpickled-payload"))), b"\x80\x04cos\nsystem\n(S'true'\ntR."]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one good file of every kind."""
    folder = tmp_path_factory.mktemp("good")
    dataset = write_dataset(folder / "dataset", [[40, 30], [50]])
    manifest = dataset.manifest()
    state = save({"model/weight": torch.ones(3, 4)})
    (folder / "state.safetensors").write_bytes(state)
    checkpoints = Checkpoints(str(folder / "runs/first"))
    document = CheckpointDocument(position=Position(epoch=1, step=2, steps_done=5), validation={"loss": 0.5}, content_id="c",
                                  dataset_version=1, seed=1, lanes=24, batch_rows=8, code_version="test")
    checkpoints.commit(document.model_copy(update={"parts": (checkpoints.put_part(state, steps=5, rank=0),)}))
    card = ModelCard(name="m", model=TabularModelConfig(hidden=(4,)), preprocessing=manifest.preprocessing, dataset_url="x",
                     dataset_version=1, content_id="c", epoch=1, step=5, validation={"loss": 0.5}, code_version="test")
    network = build_model(card.model, shapes_of(card.task, card.preprocessing))
    save_model(str(folder / "runs/first"), network.state_dict(), card)
    (folder / "weights.safetensors").write_bytes(save(network.state_dict()))
    (folder / "config.yaml").write_text(yaml.safe_dump(MINIMAL), encoding="utf-8")
    (folder / "runs/first/events").mkdir()
    (folder / "runs/first/events/0-0.jsonl").write_text(
        '{"event": "start", "time": 1.0, "generation": 0, "rank": 0}\n' * 3, encoding="ascii")
    (folder / "runs/first/result.json").write_text(TrainSummary(steps=5, resumed_at=0).model_dump_json(), encoding="ascii")
    (folder / "runs/first/evaluation.json").write_text('{"weights_sha256": "w", "network": {}, "base_rate": {}}', encoding="ascii")
    schema = Unischema("Example", [UnischemaField("id", np.int64, (), None, False)])
    (folder / "unischema.pickle").write_bytes(pickle.dumps(schema))
    return folder



@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy of the good files, to be spoilt."""
    shutil.copytree(good, tmp_path / "copy")
    return tmp_path / "copy"


def outcome(kind: str, folder: Path) -> type[Exception] | None:
    """None where the file was read; else the class of the refusal, which must be one of ours."""
    try:
        KINDS[kind].read(folder)
    except SparkringError as error:
        return type(error)
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_file_is_read_and_no_hostile_one_runs_anything(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert outcome(kind, folder) is None  # the control; it also imports what reading needs
    file = folder / KINDS[kind].file
    for text in HOSTILE_TEXTS:
        file.write_bytes(text)
        with nothing_runs():
            outcome(kind, folder)
    assert not (folder / "unpickled-payload").exists()


def test_the_witness_sees_what_runs(tmp_path: Path) -> None:
    """The control of the control: each reader that we do not use runs what the file says."""
    payload = pickle.dumps(Payload(tmp_path / "unpickled"))
    with pytest.raises(AssertionError, match=r"pickle.find_cl"), nothing_runs():
        pickle.loads(payload)
    with pytest.raises(AssertionError, match=r"os\.mkdir"), nothing_runs():
        yaml.unsafe_load(f"!!python/object/apply:os.mkdir [{tmp_path / 'from-yaml'}]")
    assert (tmp_path / "unpickled").is_dir()
    assert (tmp_path / "from-yaml").is_dir()


Cut = tuple[str, float, bytes]
CUTS: st.SearchStrategy[list[Cut]] = st.lists(
    st.tuples(st.sampled_from(("flip", "put", "insert", "cut", "repeat")), st.floats(0, 1, exclude_max=True),
              st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)


def damaged(data: bytes, cuts: Sequence[Cut], *, last: int | None = None) -> bytes:
    """A file after some damage, near its end if ``last`` says how many bytes count as that."""
    changed = bytearray(data)
    for how, where, what in cuts:
        first = 0 if last is None else max(0, len(changed) - last)
        at = first + int(where * (len(changed) - first))
        if how == "flip" and changed:
            changed[at] ^= what[0] or 1
        elif how == "put":
            changed[at:at + len(what)] = what
        elif how == "insert":
            changed[at:at] = what
        elif how == "cut":
            del changed[at:]
        else:
            changed[at:at] = changed[at:at + 64]
    return bytes(changed)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, derandomize=True, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(cuts=CUTS)
def test_a_damaged_file_is_read_or_refused_and_damaged_rows_are_never_read(kind: str, good: Path, cuts: list[Cut]) -> None:
    file = good / KINDS[kind].file
    data = file.read_bytes()
    before = {path: path.read_bytes() for path in good.glob("runs/first/model/*")}
    changed = damaged(data, cuts, last=2000 if file.suffix == ".parquet" else None)  # a Parquet file's footer is its end
    try:
        file.write_bytes(changed)
        with nothing_runs():
            refused = outcome(kind, good)
        assert kind != "Parquet" or changed == data or refused is not None
    finally:
        file.write_bytes(data)
        for path in set(good.glob("runs/first/model/*")) - before.keys():
            path.unlink()
        for path, text in before.items():
            path.write_bytes(text)


def test_a_parquet_column_that_claims_to_be_a_pickled_type_is_not_unpickled(folder: Path, tmp_path: Path) -> None:
    """CVE-2023-47248: an older pyarrow unpickled the type of a column named so in the file's schema."""
    file = folder / "dataset" / FOOTER
    table = pq.read_table(file)
    claim = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(Payload(tmp_path / "unpickled"))}
    fields = [field.with_metadata(claim) for field in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), file, row_group_size=40)
    with nothing_runs():
        outcome("Parquet that the manifest agrees with", folder)
    assert not (tmp_path / "unpickled").exists()


OUTSIDE = ["../secret.parquet", "data/../../secret.parquet", "/etc/passwd", "//etc/passwd", "s3://bucket/x.parquet", "file:///etc/passwd",
           "data//x", "./x", "..", "", "a\\..\\x", "a\0b", "a\nb"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_manifest_cannot_name_a_file_outside_its_dataset(folder: Path, path: str) -> None:
    file = folder / KINDS["manifest"].file
    document = json.loads(file.read_bytes())
    document["splits"]["train"]["files"][0]["path"] = path
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DatasetError, match="not the plain relative path of a file inside the dataset"):
        Dataset(str(folder / "dataset")).manifest()


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_that_leads_out_of_a_dataset_is_not_followed_and_one_within_is(folder: Path, tmp_path: Path, what: str) -> None:
    inside = folder / "dataset" / FOOTER
    linked, target = (inside, "elsewhere.parquet") if what == "file" else (inside.parent, "elsewhere")
    linked.rename(tmp_path / target)
    linked.symlink_to(tmp_path / target)
    with pytest.raises(SparkringError, match="is a link that leads out of"):
        Dataset(str(folder / "dataset")).store.open_input(FOOTER)
    assert outcome("Parquet", folder) is not None
    linked.unlink()
    (tmp_path / target).rename(folder / "dataset" / target)
    linked.symlink_to(folder / "dataset" / target)
    Dataset(str(folder / "dataset")).store.open_input(FOOTER).close()


@pytest.mark.parametrize("name", ["../../state.safetensors", "/etc/passwd", "5-0-00000000.safetensors/../../x", "x.safetensors", ""])
def test_a_checkpoint_cannot_name_a_part_outside_its_folder(name: str) -> None:
    with pytest.raises(ValueError, match="String should match pattern"):
        CheckpointPart(name=name, bytes=1, blake3="0")


def test_a_document_that_names_a_folder_outside_deletes_nothing_there(folder: Path) -> None:
    store = LocalStore(folder / "runs/first")
    hostile = scores.Scores(folder="../dataset", rows=1, split="test", weights_sha256="w", dataset_url="d", dataset_version=1,
                            content_id="c", created_at="2026-01-01T00:00:00Z")
    store.put(scores.DOCUMENT, hostile.model_dump_json().encode())
    with pytest.raises(SparkringError, match="leads out of"):
        scores.commit_scores(store, hostile.model_copy(update={"folder": "new"}))
    assert (folder / "dataset").is_dir()


def test_names_that_only_look_like_numbers_of_documents_are_no_versions(folder: Path) -> None:
    for name in ("01", "-1", "1e3", "\u0663", "9" * 60, "1.0", " 1"):
        shutil.copyfile(folder / "dataset/versions/1.json", folder / f"dataset/versions/{name}.json")
    assert Dataset(str(folder / "dataset")).versions() == [1]


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir [{}]", "!!python/object/new:os.mkdir [{}]", "!!python/name:os.mkdir",
                                 "!!python/module:this", "!!binary x", "!unknown {{}}"])
def test_a_config_cannot_name_python_by_tags(tmp_path: Path, tag: str) -> None:
    (tmp_path / "config.yaml").write_text(f"name: {tag.format(tmp_path / 'made')}\n", encoding="utf-8")
    with nothing_runs(), pytest.raises(SparkringError, match=r"not valid YAML|expected"):
        load_config(str(tmp_path / "config.yaml"))
    with nothing_runs(), suppress(SparkringError):  # on a command line, what is no YAML is a text
        load_config("local/flights", [f"name={tag.format(tmp_path / 'made')}"])
    assert not (tmp_path / "made").exists()
