"""An exported file answers as torch does, for each kind of model and any number of rows; one that would not is never written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import sparkring
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, DatasetError, ExportRefused
from sparkring.models.build import Shapes
from sparkring.pipelines.data.dataset.preprocessing import ClassType
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.job.model_files import load_model
from sparkring.spark_jobs.export import ExportResult, export
from sparkring.spark_jobs.exporting.predictor import OnnxPredictor
from tests.support import seams
from tests.support.exported import image_workspace, number_workspace, png, table_workspace, text_workspace, write_images


def session(result: ExportResult) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(result.path, providers=["CPUExecutionProvider"])


def stored(config: Config, split: str) -> pa.Table:
    dataset = Dataset(config.dataset)
    return pa.concat_tables(pq.read_table(dataset.store.path(file.path)) for file in dataset.manifest().splits[split].files)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, ExportResult]:
    """A table's model and its file, which tests only read."""
    config = table_workspace(tmp_path_factory.mktemp("table"))
    return config, export(config)


def test_a_table_s_file_takes_the_columns_of_the_source_and_answers_as_torch_does(table: tuple[Config, ExportResult]) -> None:
    config, result = table
    assert (result.split, result.rows, result.output, result.opset) == ("test", 333, "probability", 18)
    assert result.difference <= result.tolerance == 1e-5
    rows, run = stored(config, "test"), session(result)
    assert [(each.name, each.type, each.shape) for each in run.get_inputs()] == [
        *((name, "tensor(double)", ["batch"]) for name in ("height", "weight", "age")), ("colour", "tensor(string)", ["batch"])]
    texts = np.array(["unseen", "blue", "green", "red"], object)[rows["colour"].to_numpy()]
    numbers = {name: rows[name].to_numpy().astype(np.float64) for name in ("height", "weight", "age")}  # mean 0, deviation 1
    model, _ = load_model(config.run_url)
    with torch.inference_mode():
        logits = model(numeric=torch.tensor(np.stack(list(numbers.values()), 1), dtype=torch.float32),
                       categorical=torch.from_numpy(rows["colour"].to_numpy()[:, None].astype(np.int64)))
    expected = torch.sigmoid(logits.double()).numpy()
    for some in (slice(0, 1), slice(5, 25), slice(0, 333)):
        found = run.run(["probability"], {**{name: values[some] for name, values in numbers.items()}, "colour": texts[some]})[0]
        np.testing.assert_allclose(found, expected[some], atol=1e-6)
    shuffled = run.run(["probability"], {**numbers, "colour": texts[::-1]})[0]
    assert np.abs(shuffled - expected).max() > 1e-2  # the control: texts matter


def test_the_file_is_checked_onnx_and_says_what_it_is(table: tuple[Config, ExportResult]) -> None:
    config, result = table
    model = onnx.load(result.path)
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 18, "ai.onnx.ml": 3}
    assert "/" not in Path(config.workspace).name
    assert config.workspace.encode() not in Path(result.path).read_bytes()
    said = OnnxPredictor(Path(result.path).read_bytes()).signature
    _, card = load_model(config.run_url)
    assert (said.weights_sha256, said.content_id, said.outputs) == (card.weights_sha256, card.content_id, ("probability",))
    assert (result.inside, result.beside) == (("the filling and scaling of 3 numbers", "the ids of 1 text"),
                                              ("the query that yields these columns",))


@pytest.mark.parametrize(("channels", "class_type", "classes", "norm"), [
    pytest.param(3, "string", ("cat", "dog", "\u00fcber"), "group", id="colours, classes with names"),
    pytest.param(1, "smallint", (-1, 7, 100), "batch", id="grey, classes with numbers, batch normalisation", marks=pytest.mark.skipif(
        torch.__version__.startswith("2.6."), reason="torch 2.6 cannot write batch normalisation with today's onnxscript"))])
def test_an_image_s_file_takes_pixels_and_names_the_class(
        tmp_path: Path, channels: int, class_type: ClassType, classes: tuple[object, ...], norm: str) -> None:
    config = image_workspace(tmp_path, channels=channels, class_type=class_type, norm=norm)
    result = sparkring.export(config, opset=21)
    assert (result.split, result.rows, result.opset) == ("validation", 40, 21)
    assert result.beside == ("reading image files, and cropping and scaling them to 6 x 5",)
    pixels = write_images(tmp_path / "again", channels=channels)
    prediction, probability, probabilities = session(result).run(None, {"picture": pixels})
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-12)
    np.testing.assert_array_equal(probability, probabilities.max(1))
    assert prediction.tolist() == [classes[number] for number in probabilities.argmax(1)]
    assert prediction.dtype == (np.int16 if class_type == "smallint" else object)
    read = OnnxPredictor(Path(result.path).read_bytes())(pa.RecordBatch.from_pydict({"picture": [png(each) for each in pixels]}))
    np.testing.assert_array_equal(read["probabilities"], probabilities)


def test_a_regression_s_file_answers_in_the_label_s_own_units(tmp_path: Path) -> None:
    config = number_workspace(tmp_path)
    result = export(config)
    assert (result.rows, result.output, result.tolerance) == (333, "prediction", 1e-4)
    rows = stored(config, "test")
    numbers = {name: rows[name].to_numpy().astype(np.float64) for name in ("height", "age")}
    texts = np.array(["unseen", "blue", "green", "red"], object)[rows["colour"].to_numpy()]
    model, card = load_model(config.run_url)
    label = card.preprocessing.label
    assert label is not None
    with torch.inference_mode():
        standardised = model(numeric=torch.tensor(np.stack(list(numbers.values()), 1), dtype=torch.float32),
                             categorical=torch.from_numpy(rows["colour"].to_numpy()[:, None].astype(np.int64)))
    (found,) = session(result).run(None, numbers | {"colour": texts})
    np.testing.assert_allclose(found, standardised.double().numpy() * label.std + label.mean, atol=1e-5)
    assert "This model predicts `weight`, a number." in Path(result.card).read_text()


def test_a_text_s_file_takes_tokens_and_shorter_rows_too(tmp_path: Path) -> None:
    config = text_workspace(tmp_path)
    result = export(config)
    model, _ = load_model(config.run_url)
    run = session(result)
    assert [(each.name, each.shape) for each in run.get_inputs()] == [("tokens", ["batch", "length"])]
    for shape in ((1, 6), (5, 3)):
        tokens = np.random.default_rng(0).integers(0, 11, shape)
        logits, nats, predicted, right = run.run(None, {"tokens": tokens})
        with torch.inference_mode():
            expected = model(tokens=torch.from_numpy(tokens))
        np.testing.assert_allclose(logits, expected.numpy(), atol=1e-5)
        cost = -torch.log_softmax(expected[:, :-1].double(), 2).gather(2, torch.from_numpy(tokens[:, 1:, None]))[..., 0].sum(1)
        np.testing.assert_allclose(nats, cost.numpy(), rtol=1e-5)
        assert predicted.tolist() == [shape[1] - 1] * shape[0]
        np.testing.assert_array_equal(right, (expected[:, :-1].argmax(2).numpy() == tokens[:, 1:]).sum(1))
    cells = OnnxPredictor(Path(result.path).read_bytes())(stored(config, "validation").select(["tokens"]).to_batches()[0])
    assert cells["nats"].shape == (37,)


def test_a_prediction_needs_neither_torch_nor_spark(table: tuple[Config, ExportResult]) -> None:
    code = """
import sys
for module in ("torch", "pyspark", "onnx", "onnxscript", "horovod"):
    sys.modules[module] = None
import pyarrow, sparkring
from sparkring.spark_jobs.exporting.predictor import OnnxPredictor
rows = {"height": [0.0], "weight": [None], "age": [1], "colour": ["blue"]}
print(float(OnnxPredictor(open(sys.argv[1], "rb").read())(pyarrow.RecordBatch.from_pydict(rows))["probability"][0]))
"""
    ended = subprocess.run([sys.executable, "-c", code, table[1].path], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = {"height": np.array([0.0]), "weight": np.array([np.nan]), "age": np.array([1.0]), "colour": np.array(["blue"], object)}
    assert float(ended.stdout) == pytest.approx(session(table[1]).run(None, rows)[0][0])


def test_a_model_in_float64_keeps_it_and_its_file_may_lie_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = table_workspace(tmp_path / "workspace", dtype=torch.float64)
    monkeypatch.chdir(tmp_path)
    result = export(config, output="mine.onnx")
    assert result.difference < 1e-14
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.onnx", "model-card.md", "workspace"]
    assert result.path == str(tmp_path / "mine.onnx")


class Fine(nn.Module):
    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.head = nn.Linear(shapes.num_numeric + 1, 1)

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([numeric, categorical.to(numeric.dtype)], 1))
        return logits


class Branching(Fine):
    """What it does depends on the values of a batch."""

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        return super().forward(numeric, categorical) if float(numeric.sum()) > 0 else super().forward(-numeric, categorical)


class Drifting(Fine):
    """What is exported is not what is called: torch follows the other branch."""

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        logits = super().forward(numeric, categorical)
        exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # the first is of torch 2.7
        return logits + 1 if exporting() else logits


def own(kind: type[Fine], monkeypatch: pytest.MonkeyPatch) -> str:
    def build(shapes: Shapes) -> nn.Module:
        return kind(shapes)

    monkeypatch.setattr(seams.NETWORK_BUILDS, {"mine": build})
    return "mine"


def test_a_network_of_the_user_s_own_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert export(table_workspace(tmp_path, network=own(Fine, monkeypatch))).difference < 1e-6


def test_a_network_that_torch_cannot_write_is_refused_with_torch_s_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = table_workspace(tmp_path, network=own(Branching, monkeypatch))
    with pytest.raises(ExportRefused, match=r"torch cannot write model\.network=mine as ONNX of opset 18: .*; docs/how-to/export\.md"):
        export(config)
    assert not Path(config.run_url, "export").exists()


def test_a_file_that_answers_otherwise_than_torch_is_refused_and_the_earlier_one_stays(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = table_workspace(tmp_path, network=own(Fine, monkeypatch))
    before = {path.name: path.read_bytes() for path in Path(export(config).path).parent.iterdir()}
    own(Drifting, monkeypatch)
    with pytest.raises(ExportRefused, match=r"differs from torch by \d\.\de-01 in probability on 333 rows of the test split, 1e-05 is"):
        export(config)
    assert {path.name: path.read_bytes() for path in Path(config.run_url, "export").iterdir()} == before
    assert before.keys() == {"model.onnx", "model-card.md"}


@pytest.mark.parametrize(("settings", "kind", "message"), [
    pytest.param({"to": "coreml"}, ConfigError, r"cannot be exported to coreml; choose onnx\.", id="another format"),
    pytest.param({"output": "model.pt"}, ConfigError, r"--output model\.pt does not end in \.onnx", id="another suffix"),
    pytest.param({"opset": 17}, ExportRefused, r"opset 17 cannot be written, torch and the installed onnx write 18 to \d+",
                 id="an old opset"),
    pytest.param({"opset": 999}, ExportRefused, r"opset 999 cannot be written", id="an opset to come")])
def test_what_cannot_be_written_is_refused(table: tuple[Config, ExportResult], settings: dict[str, Any], kind: type[Exception],
                                           message: str) -> None:
    with pytest.raises(kind, match=message):
        export(table[0], **settings)


def test_without_a_model_or_held_out_rows_there_is_no_file(tmp_path: Path, table: tuple[Config, ExportResult]) -> None:
    with pytest.raises(ConfigError, match="holds no run yet"):
        export(table[0].model_copy(update={"workspace": str(tmp_path)}))
    config = table_workspace(tmp_path)
    card = Path(config.run_url, "model/model.json")
    card.write_text(card.read_text().replace(Dataset(config.dataset).manifest().content_id, "0" * 64))
    with pytest.raises(DatasetError, match="but the model was trained on 0000000000000000"):
        export(config)
