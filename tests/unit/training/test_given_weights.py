"""Given weights: which files are taken, what must fit, and what is said of what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.datasets import write_dataset
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.training.job.given_weights import find_weights, network_kinds
from sparkring.pipelines.training.job.model_files import ModelCard, save_model
from sparkring.pipelines.training.job.same_inputs import other_meanings, other_scales
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.spark_jobs.run.given import require_weights_fit, with_given_weights
from sparkring.spark_jobs.run.identity import identity_of
from sparkring.spark_jobs.spark.progress import SilentProgress
from tests.support.training import train_config

HEAD = "layers.2.linear.weight"


class Notes(SilentProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_dataset(tmp_path_factory.mktemp("rows") / "dataset", ([20],), validation_rows=5).manifest()


def _config(folder: Path, manifest: Manifest, **model: Any) -> Config:
    config = train_config(folder, model={"hidden": [4, 3], **model})
    return config.fitted_to(manifest.splits["train"].rows)


def _weights(config: Config, manifest: Manifest) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return dict(build_model(config.model, shapes_of(manifest.task, manifest.preprocessing)).state_dict())


def _checked(config: Config, manifest: Manifest) -> list[str]:
    """What is noted about the given weights."""
    notes = Notes()
    require_weights_fit(with_given_weights(config), manifest, notes)
    return notes.texts


def test_a_file_that_fits_is_taken_whatever_the_width_of_its_floats(tmp_path: Path, manifest: Manifest) -> None:
    weights = _weights(_config(tmp_path, manifest), manifest)
    save_file({name: tensor.half() for name, tensor in weights.items()}, tmp_path / "given.safetensors")
    config = _config(tmp_path, manifest, weights=str(tmp_path / "given.safetensors"))
    assert _checked(config, manifest) == [f"training: starts from {len(weights)} tensors of {tmp_path}/given.safetensors"]
    assert network_kinds(config.model, manifest).keys() == weights.keys()


class _Calls(TorchDispatchMode):
    """Notes the names of torch's operations."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def test_the_kinds_of_a_networks_tensors_are_found_without_a_draw(tmp_path: Path, manifest: Manifest) -> None:
    """For the normal distribution of tensors without memory torch loads its compiler."""
    model, shapes = _config(tmp_path, manifest).model, shapes_of(manifest.task, manifest.preprocessing)
    called, drawing = set[str](), set[str]()
    with _Calls(called):
        network_kinds(model, manifest)
    with _Calls(drawing), torch.device("meta"):  # the control
        build_model(model, shapes)
    assert [any("normal" in name for name in names) for names in (called, drawing)] == [False, True]


def test_missing_unknown_and_unequal_tensors_are_all_named_and_left_out_if_that_is_asked(tmp_path: Path, manifest: Manifest) -> None:
    weights = _weights(_config(tmp_path, manifest), manifest)
    missing, unequal, *_ = sorted(weights)
    del weights[missing]
    weights[unequal] = torch.zeros(9, 9)
    integers = max(weights)
    weights[integers] = torch.zeros(weights[integers].shape, dtype=torch.int64)
    save_file(weights | {f"old.{number}": torch.zeros(1) for number in range(7)}, tmp_path / "given.safetensors")
    config = _config(tmp_path, manifest, weights=str(tmp_path / "given.safetensors"))
    with pytest.raises(ConfigError) as refused:
        _checked(config, manifest)
    for part in (f"1 missing ({missing})", "7 unknown (old.0, and old.1, and old.2, and old.3, and old.4, and 2 more)",
                 f"2 of another shape or type ({unequal} 9x9 for ", " integers for ", "or set model.weights_partial=true"):
        assert part in str(refused.value)
    (note,) = _checked(config.changed(model=config.model.changed(weights_partial=True)), manifest)
    assert note.startswith(f"training: starts from {len(weights) - 2} tensors of")
    assert f"left out: 1 missing ({missing}), 7 unknown" in note
    save_file({"other": torch.zeros(1)}, tmp_path / "given.safetensors")
    with pytest.raises(ConfigError, match=r"1 unknown \(other\) tensors; give the network the layers that the file is of\.$"):
        _checked(config.changed(model=config.model.changed(weights_partial=True)), manifest)


@pytest.mark.parametrize(("name", "content", "message"), [
    pytest.param("given.pt", b"", "is a pickle, which could run code, and sparkring unpickles nothing; in a process", id="a pickle"),
    pytest.param("given.safetensors", b"PK\3\4" + bytes(60), "is not a safetensors file; write it again", id="another format"),
    pytest.param("given.safetensors", None, "there is no file /.*; correct the path", id="no file"),
    pytest.param("given.npz", b"PK", r"given\.npz is no \.safetensors file, and no folder of a run", id="a file of another kind"),
    pytest.param("given.npz/model", b"PK", r"is no \.safetensors file, and no folder of a run", id="the model of a file"),
    pytest.param("given.npz/model.safetensors", b"PK", "there is no file /.*; correct the path", id="inside a file"),
    pytest.param("folder.safetensors", None, "there is no file /.*; correct the path", id="a folder named like a file"),
    pytest.param("elsewhere", None, r"is no \.safetensors file, and no folder of a run that has a model; give", id="no run")])
def test_other_files_are_refused(tmp_path: Path, manifest: Manifest, name: str, content: bytes | None, message: str) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    if content is not None:
        (tmp_path / name.partition("/")[0]).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        _checked(_config(tmp_path, manifest, weights=f"{tmp_path}/{name}"), manifest)


def test_a_run_belongs_to_the_file_s_bytes_wherever_they_lie(tmp_path: Path, manifest: Manifest) -> None:
    plain = _config(tmp_path, manifest)
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    save_file(_weights(plain, manifest), one)
    other.write_bytes(one.read_bytes())
    mine, moved = (with_given_weights(_config(tmp_path, manifest, weights=str(path))) for path in (one, other))
    assert identity_of(mine, manifest) == identity_of(moved, manifest)
    assert identity_of(plain, manifest)["model"].keys().isdisjoint({"weights", "weights_sha256", "weights_partial"})
    assert identity_of(plain, manifest) != identity_of(mine, manifest)
    save_file(_weights(plain, manifest) | {HEAD: torch.ones(1)}, other)
    changed = with_given_weights(_config(tmp_path, manifest, weights=str(other)))
    assert identity_of(changed, manifest) != identity_of(mine, manifest)
    with pytest.raises(ConfigError, match=r"has SHA-256 .*, model\.weights_sha256 is .*; name the right file"):
        with_given_weights(moved)
    with pytest.raises(ConfigError, match=r"has SHA-256 .*, this run starts from .*; bring that file back"):
        find_weights(str(other)).read(mine.model.weights_sha256 or "")


def test_the_model_of_a_run_is_taken_unless_its_inputs_mean_something_else(tmp_path: Path, manifest: Manifest) -> None:
    features = manifest.preprocessing
    config = _config(tmp_path, manifest, weights=str(tmp_path / "run"))

    def trained_with(**changes: Any) -> None:
        save_model(str(tmp_path / "run"), _weights(config, manifest), ModelCard(
            name="m", model=_config(tmp_path, manifest).model, preprocessing=features.model_copy(update=changes), dataset_url="rows",
            dataset_version=1, content_id="c", epoch=1, step=1, validation={}, code_version="0"))

    trained_with()
    assert len(_checked(config, manifest)) == 1
    assert len(_checked(config.changed(model=config.model.changed(weights=f"{tmp_path}/run/model")), manifest)) == 1
    trained_with(numeric=(features.numeric[0].model_copy(update={"centre": 3.0}), *features.numeric[1:]))
    assert "other figures to fill and scale height; the first steps" in _checked(config, manifest)[1]
    colour = features.categorical[0]
    trained_with(categorical=(colour.model_copy(update={"vocabulary": colour.vocabulary[::-1]}),))
    with pytest.raises(ConfigError, match=r"was trained on rows, and on version 1 .* meant by the ids of colour; train on a version"):
        _checked(config, manifest)
    (file,) = (tmp_path / "run/model").glob("*.safetensors")
    assert len(_checked(config.changed(model=config.model.changed(weights=str(file))), manifest)) == 1, "a file's inputs are not compared"
    load(file.read_bytes())


def test_the_order_of_columns_and_the_classes_are_part_of_what_inputs_mean(manifest: Manifest) -> None:
    features = manifest.preprocessing
    turned = features.model_copy(update={"numeric": features.numeric[::-1], "classes": ("a", "b")})
    assert other_meanings(("binary", features), ("multiclass", turned)) == ["the task", "the classes", "the numbers and their order"]
    assert other_meanings(("binary", features), ("binary", features)) == []
    assert other_scales(features, turned) == []
