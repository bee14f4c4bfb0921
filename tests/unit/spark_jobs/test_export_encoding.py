"""What a file does to odd values before its network sees them: what the SQL of prepare does, worked out here with numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparkring.conf.schema.model import TabularModelConfig
from sparkring.errors import ExportRefused, SourceError
from sparkring.pipelines.data.dataset.preprocessing import (
    BucketFeature,
    CategoricalFeature,
    HashFeature,
    MomentPart,
    NumericFeature,
    Preprocessing,
)
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.exporting.encoders import TableEncoder
from sparkring.spark_jobs.exporting.graph import write_graph
from sparkring.spark_jobs.exporting.predictor import OnnxPredictor
from sparkring.spark_jobs.exporting.signature import signature_of
from sparkring.spark_jobs.exporting.source_arrays import source_arrays

FITTED = Preprocessing(
    numeric=(NumericFeature(column="standard", mean=3.0, std=7.0, nulls=1),
             NumericFeature(column="as_it_is", mean=0.5, std=2.0, nulls=1, scale="none", centre=0.0, spread=1.0, fill="median",
                            filled_with=0.25, indicator="as_it_is_is_null"),
             NumericFeature(column="logarithm", mean=9.0, std=2.0, nulls=1, scale="log1p", centre=1.5, spread=0.5, fill="constant",
                            filled_with=4.0, indicator="logarithm_is_null"),
             NumericFeature(column="at_hour", mean=12.0, std=6.0, nulls=0, moment=MomentPart(of="at", part="hour", time_zone="UTC"))),
    categorical=(CategoricalFeature(column="city", vocabulary=("Bern", "", "Z\u00fcrich \U0001f600", "7", "-0.0", "true", "2020-02-29")),
                 CategoricalFeature(column="rare", vocabulary=())),
    buckets=(BucketFeature(column="as_it_is_bucket", of="as_it_is", edges=(-1.0, 0.0, 2.5)),
             BucketFeature(column="one", of="alone", edges=())),
    hashed=(HashFeature(column="agent_hash", of="agent", ids=10, seed=3),), train_rows=10)
ODD = np.array([0.0, -0.0, 1.0, -1.0, math.nextafter(-1.0, 0.0), -2.0, 2.5, math.nextafter(2.5, 0.0), math.nan, math.inf, -math.inf,
                1e100, -1e100, 3.4e38, 5e-324, 1e-20, 2.0**53 + 2, 1e308])


class Squashed(nn.Module):
    """Answers by all inputs; none drowns the others."""

    def __init__(self, numbers: int, ids: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.of_numbers = nn.Parameter(torch.randn(numbers, generator=generator))
        self.of_ids = nn.Parameter(torch.randn(ids, generator=generator))

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        return torch.tanh(numeric) @ self.of_numbers + torch.sin(categorical.float()) @ self.of_ids


def card() -> ModelCard:
    return ModelCard(name="odd", model=TabularModelConfig(), preprocessing=FITTED, dataset_url="d", dataset_version=1, content_id="c",
                     epoch=1, step=1, validation={}, code_version="0", weights_sha256="0" * 64)


def source() -> dict[str, NDArray[Any]]:
    """Each odd number once in each column, beside texts that come around."""
    texts = ["Bern", "", "Z\u00fcrich \U0001f600", "7", "-0.0", "0.0", "true", "2020-02-29", " Bern", "bern", "?"]
    rows = len(ODD)
    return {"standard": ODD, "as_it_is": ODD, "logarithm": ODD, "at_hour": np.roll(ODD, 1), "alone": ODD,
            "city": np.array([texts[row % len(texts)] for row in range(rows)], object),
            "rare": np.array([texts[-row % len(texts)] for row in range(rows)], object), "agent_hash": np.arange(rows) % 10}


def scaled(feature: NumericFeature, values: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """``table_features.py`` in numpy."""
    least, most = feature.least_and_most
    with np.errstate(all="ignore"):
        missing = ~((values >= least) & (values <= most) & ((values > -1) | (feature.scale != "log1p")))
        filled = np.where(missing, feature.filled_with, values)
        x = np.log1p(filled) if feature.scale == "log1p" else filled
        return ((x - feature.centre) / feature.spread).astype(np.float32), missing


def expected(columns: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    made = [scaled(feature, columns[feature.column]) for feature in FITTED.numeric]
    flags = [missing.astype(np.float32) for feature, (_, missing) in zip(FITTED.numeric, made, strict=True) if feature.indicator]
    looked_up = [[1 + feature.vocabulary.index(text) if text in feature.vocabulary else 0 for text in columns[feature.column]]
                 for feature in FITTED.categorical]
    ranges = [[1 + sum(value >= edge for edge in bucket.edges) if math.isfinite(value) else 0 for value in columns[bucket.of]]
              for bucket in FITTED.buckets]
    return (np.stack([*(values for values, _ in made), *flags], 1),
            np.stack([np.array(ids) for ids in (*looked_up, *ranges, columns["agent_hash"])], 1))


@pytest.fixture(scope="module")
def file() -> tuple[OnnxPredictor, Squashed]:
    network = Squashed(len(FITTED.numeric_columns), len(FITTED.with_ids)).eval()
    return OnnxPredictor(write_graph(network, card(), signature_of(card(), ()), opset=18).SerializeToString()), network


def answer(network: nn.Module, numeric: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float64]:
    with torch.inference_mode():
        probability: NDArray[np.float64] = torch.sigmoid(network(torch.from_numpy(numeric), torch.from_numpy(ids)).double()).numpy()
    return probability


def test_the_encoder_computes_each_value_as_prepare_does() -> None:
    columns = source()
    numbers = tuple(each.name for each in signature_of(card(), ()).inputs if each.kind == "number")
    assert numbers == ("standard", "as_it_is", "logarithm", "at_hour", "alone")
    numeric, ids = expected(columns)
    looked_up = torch.from_numpy(ids[:, [0, 1, 4]])
    made = TableEncoder(FITTED, numbers)(torch.from_numpy(np.stack([columns[name] for name in numbers], 1)), looked_up)
    exact = [place for place, name in enumerate(FITTED.numeric_columns) if name != "logarithm"]
    np.testing.assert_array_equal(made["numeric"].numpy()[:, exact], numeric[:, exact])
    np.testing.assert_array_equal(np.signbit(made["numeric"].numpy()[:, 1]), np.signbit(numeric[:, 1]))  # -0.0 stays
    np.testing.assert_allclose(made["numeric"].numpy(), numeric, rtol=1.2e-7)  # a unit in the last place of float32
    np.testing.assert_array_equal(made["categorical"].numpy(), ids)
    assert {0, 1, 2, 3, 4} == set(ids[:, 2])


def test_a_logarithm_of_nearly_nothing_keeps_its_digits() -> None:
    tiny = NumericFeature(column="x", mean=0.0, std=1.0, nulls=0, scale="log1p", centre=0.0, spread=1e-20)
    fitted = Preprocessing(numeric=(tiny,), categorical=(), train_rows=1)
    made = TableEncoder(fitted, ("x",))(torch.tensor([[1e-20], [3e-18]], dtype=torch.float64))["numeric"]
    assert made.flatten().tolist() == pytest.approx([1.0, 300.0], rel=1e-6)


def test_the_file_answers_to_odd_values_as_torch_does_to_their_encoding(file: tuple[OnnxPredictor, Squashed]) -> None:
    predictor, network = file
    columns = source()
    found, wanted = predictor.run(columns)["probability"], answer(network, *expected(columns))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    for name, other in {"city": np.roll(columns["city"], 1), "standard": columns["standard"] + 1, "agent_hash": columns["agent_hash"][::-1]
                        }.items():  # the control: each input counts
        assert np.abs(predictor.run({**columns, name: other})["probability"] - wanted).max() > 1e-3


def test_held_out_rows_are_brought_back_to_what_is_encoded_alike(file: tuple[OnnxPredictor, Squashed]) -> None:
    predictor, network = file
    columns = {name: values[np.abs(np.nan_to_num(ODD, posinf=0, neginf=0)) < 1e38] for name, values in source().items()}
    numeric, ids = expected(columns)
    back = source_arrays({"numeric": numeric, "categorical": ids}, predictor.signature, FITTED)
    again = expected(back)
    np.testing.assert_array_equal(again[1], ids)
    np.testing.assert_allclose(again[0], numeric, rtol=1e-6, atol=1e-6)
    assert back["as_it_is"][ids[:, 2] == 0].tolist() == pytest.approx([math.nan] * 3, nan_ok=True)
    np.testing.assert_allclose(predictor.run(back)["probability"], answer(network, numeric, ids), atol=1e-6)


def test_arrow_rows_of_any_fitting_type_are_taken(file: tuple[OnnxPredictor, Squashed]) -> None:
    predictor, network = file
    rows = {"standard": pa.array([2**53 + 1, None], pa.int64()), "as_it_is": pa.array([True, False]),
            "logarithm": pa.array([None, 1.5], pa.float32()), "at_hour": pa.array([7, 8], pa.int8()), "alone": pa.array([None, 0.5]),
            "city": pa.array([7, None]), "rare": pa.array([None, "x"], pa.large_string()), "agent_hash": pa.array([3, 0], pa.int32()),
            "note": pa.array(["left", "out"])}
    plain = {"standard": np.array([2.0**53, math.nan]), "as_it_is": np.array([1.0, 0.0]), "logarithm": np.array([math.nan, 1.5]),
             "at_hour": np.array([7.0, 8.0]), "alone": np.array([math.nan, 0.5]), "city": np.array(["7", "unseen"], object),
             "rare": np.array(["", ""], object), "agent_hash": np.array([3, 0])}
    found = predictor(pa.RecordBatch.from_pydict(rows))["probability"]
    np.testing.assert_allclose(found, answer(network, *expected(plain)), atol=1e-6)
    for text, stands_for in ((pa.array([True, False]), "true"), (pa.array([date(2020, 2, 29)] * 2), "2020-02-29")):
        typed = predictor(pa.RecordBatch.from_pydict({**rows, "city": text}))["probability"]
        wanted = answer(network, *expected({**plain, "city": np.array([stands_for, "?"], object)}))
        np.testing.assert_allclose(typed[0], wanted[0], atol=1e-6)


@pytest.mark.parametrize(("changes", "message"), [
    pytest.param({"citi": pa.array(["x"])}, r"the rows have no column city; did you mean 'citi'\?; the file of odd takes standard, as_it",
                 id="a column that is not there"),
    pytest.param({"city": pa.array([1.0])}, r"column city is double, but it stands for a category, 7 known \(text\); cast",
                 id="a double, whose text Arrow and Java write in two ways"),
    pytest.param({"city": pa.array(["x"]), "standard": pa.array(["1"])}, r"column standard is string, but it stands for a number",
                 id="text"),
    pytest.param({"city": pa.array(["x"]), "agent_hash": pa.array([None], pa.int64())}, r"column agent_hash has 1 nulls, but it is the",
                 id="no id")])
def test_rows_that_the_file_does_not_take_are_refused(file: tuple[OnnxPredictor, Squashed], changes: dict[str, pa.Array],
                                                      message: str) -> None:
    rows = {each.name: pa.array([1.0]) for each in file[0].signature.inputs if each.kind == "number"}
    rows |= {"rare": pa.array(["x"]), "agent_hash": pa.array([1])} | changes
    with pytest.raises(SourceError, match=message):
        file[0](pa.RecordBatch.from_pydict(rows))


def test_a_file_of_another_program_is_refused() -> None:
    with pytest.raises(ExportRefused, match="cannot load the file"):
        OnnxPredictor(b"no onnx")


def test_a_column_that_is_used_in_two_ways_or_has_the_name_of_an_output_is_refused() -> None:
    twice = FITTED.model_copy(update={"buckets": (BucketFeature(column="b", of="city", edges=(1.0,)),)})
    with pytest.raises(ExportRefused, match=r"two features take city, one as a category, 7 known \(text\) and one as a number \(number\)"):
        signature_of(card().model_copy(update={"preprocessing": twice}), ())
    named = FITTED.model_copy(update={"categorical": (CategoricalFeature(column="probability", vocabulary=("x",)),)})
    with pytest.raises(ExportRefused, match="the feature probability of odd has the name of an output"):
        signature_of(card().model_copy(update={"preprocessing": named}), ())
