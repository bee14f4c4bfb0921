"""The model card: what it says follows from the workspace, and the program in it runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest

from sparkring.conf.schema.strategy import LocalSgdConfig
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, CategoricalFeature, HashFeature
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.evaluation.intervals import auc_interval, share_interval
from sparkring.pipelines.training.job.model_files import ModelCard, load_card
from sparkring.spark_jobs.exporting.card import WrittenFile, render_card
from sparkring.spark_jobs.exporting.check import Agreement
from sparkring.spark_jobs.exporting.limits import limits
from sparkring.spark_jobs.exporting.signature import signature_of
from sparkring.spark_jobs.exporting.snippet import snippet
from sparkring.spark_jobs.reporting.facts.gather import Workspace, gather
from sparkring.spark_jobs.reporting.facts.quality import MeanQuality
from tests.support.configs import write
from tests.support.exported import image_workspace, table_workspace, text_workspace
from tests.support.report_samples import sample_config, sample_manifest, write_evaluation, write_model, write_workspace

if TYPE_CHECKING:
    from tests.support.command_line import Run

pytest_plugins = ["tests.support.command_line"]


def rendered(config: Any, card: ModelCard, manifest: Manifest, workspace: Workspace | None = None) -> str:
    file = WrittenFile(name="model.onnx", bytes=1234, sha256="ef" * 32, opset=18, signature=signature_of(card, manifest.fields),
                       agreement=Agreement("test", 1000, "probability", 3.2e-8, 1e-5))
    return render_card(file, card, manifest, workspace or gather(config), config)


def table_under(page: str, first: str) -> list[list[str]]:
    """The rows of the table that begins with a cell, without the line below its head."""
    lines = page[page.index(f"| {first} |"):].split("\n\n", maxsplit=1)[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in (lines[0], *lines[2:])]


def test_a_binary_model_s_card_has_its_figures_beside_those_of_the_baselines(tmp_path: Path) -> None:
    config = write_workspace(tmp_path)
    card, manifest = load_card(config.run_url), sample_manifest()
    page = rendered(config, card, manifest)
    assert page.startswith("# flights\n\nThis model predicts the probability that `late` is 1. It is a network of kind tabular")
    quality = table_under(page, "model")
    assert [row[0] for row in quality] == ["model", "Network", "Logistic regression", "Base rate"]
    assert quality[0] == ["model", "loss", "ROC AUC", "average precision", "calibration error"]
    document = json.loads(Path(config.run_url.removeprefix("file://"), "evaluation.json").read_text())
    auc, low, high = map(float, re.findall(r"\d\.\d{4}", quality[1][2]))
    assert auc == pytest.approx(document["network"]["auc"], abs=5e-5)
    assert low < auc < high < low + 0.02
    inputs = table_under(page, "input")
    assert inputs[1] == ["`dep_delay_prev`", "float64", "(rows,)", "a number", "NaN"]
    assert inputs[6] == ["`carrier`", "string", "(rows,)", "a category, 5 known", '`""`']
    assert table_under(page, "split")[1:] == [["train", "221,405", "24.0\u00a0%"], ["validation", "54,310", "24.0\u00a0%"],
                                              ["test", "51,631", "24.0\u00a0%"]]
    assert table_under(page, "source")[1] == ["`flights`", "336,776", "ab" * 32]
    for fact in ("1,000 rows of the test split", "ring: 2 ranks", "optimizer: adamw", card.weights_sha256, "ef" * 32, manifest.content_id):
        assert fact in page
    assert "A baseline has" not in page
    assert not re.search(r"\n\n\n|^ +\|", page, flags=re.MULTILINE)


def test_a_card_says_of_another_strategy_than_exact_that_its_gradients_are_not_those_of_one_rank(tmp_path: Path) -> None:
    config, text = write_workspace(tmp_path), "not the gradients of training on one rank"
    card, manifest, workspace = load_card(config.run_url), sample_manifest(), gather(config)
    assert workspace.run is not None
    assert text not in rendered(config, card, manifest, workspace), "the control"
    other = replace(workspace, learned=config.train.changed(strategy=LocalSgdConfig()),
                    run=replace(workspace.run, reduction="local_sgd: models are averaged at an epoch's end"))
    assert f"- strategy: local_sgd: models are averaged at an epoch's end; {text}\n" in rendered(config, card, manifest, other)


def test_a_card_says_what_is_not_known_and_where_the_model_is_weak(tmp_path: Path) -> None:
    config = sample_config(tmp_path)
    write_model(config)
    write_evaluation(config, weights_sha256="of an earlier model")
    manifest = sample_manifest(recipe={"query": "SELECT 1 AS x,\n  2 AS y\n"})
    rare = manifest.splits["train"].model_copy(update={"positives": 50})
    manifest = manifest.model_copy(update={"splits": {**manifest.splits, "train": rare}})
    card = load_card(config.run_url)
    often = card.preprocessing.numeric[0].model_copy(update={"nulls": 221_405 // 2})
    card = card.model_copy(update={"preprocessing": card.preprocessing.model_copy(update={
        "numeric": (often, *card.preprocessing.numeric[1:]), "hashed": (HashFeature(column="tail_hash", of="tail", ids=9, seed=1),)})})
    page = rendered(config, card, manifest)
    assert "Not evaluated beside baselines. While training, on the validation split: loss 0.4100, auc 0.7300." in page
    for limit in ("- It was not evaluated beside baselines: run `sparkring evaluate`, then export again.",
                  "- `late` is 1 in only 50 of 221,405 train rows.", "- `dep_delay_prev` is missing in 50.0\u00a0% of train rows.",
                  "- Different values of 1 hashed column share ids."):
        assert limit in page.splitlines()
    assert "```sql\nSELECT 1 AS x,\n  2 AS y\n```" in page
    assert "Beside it, for you to do: the query that yields these columns, the hashes of tail." in page


def test_names_from_the_data_end_no_cell_of_a_table(tmp_path: Path) -> None:
    config = write_workspace(tmp_path)
    card, manifest = load_card(config.run_url), sample_manifest()
    odd = card.preprocessing.model_copy(update={
        "categorical": (CategoricalFeature(column="a|b\n`c`", vocabulary=("", "?", "x|y")),),
        "buckets": (BucketFeature(column="b", of="temp", edges=(1.0,)),)})
    page = rendered(config, card.model_copy(update={"preprocessing": odd}), manifest)
    assert table_under(page, "input")[-1] == ["`a\\|b 'c'`", "string", "(rows,)", "a category, 3 known", '`"??"`']


def test_names_from_the_data_are_nothing_but_names_in_the_limits(tmp_path: Path) -> None:
    config = write_workspace(tmp_path)
    card, manifest = load_card(config.run_url), sample_manifest()
    train = manifest.splits["train"]
    odd = card.preprocessing.model_copy(update={"classes": ("<b>*x*", "a`b\nc"), "numeric": (
        card.preprocessing.numeric[0].model_copy(update={"column": "x`\ny", "nulls": card.preprocessing.train_rows}),)})
    manifest = manifest.model_copy(update={"label": "l`\nm", "preprocessing": odd, "splits": {
        **manifest.splits, "train": train.model_copy(update={"positives": 1})}})
    quality = MeanQuality(counted="rows", split="test", dataset_version=1, weights_sha256="w", metrics=(), models={}, rows_by_class=(1, 3))
    found = limits(card.model_copy(update={"preprocessing": odd}), manifest, replace(gather(config), mean_quality=quality))
    assert f"`l' m` is 1 in only 1 of {train.rows:,} train rows." in found
    assert "`x' y` is missing in 100.0\u00a0% of train rows." in found
    assert "Classes with few evaluated rows, whose figures say little: `<b>*x*` (1), `a'b c` (3)." in found


def test_a_model_of_classes_names_those_that_were_hardly_evaluated(tmp_path: Path) -> None:
    config = image_workspace(tmp_path)
    card = load_card(config.run_url)
    metrics = {"rows": 240, "loss": 0.5, "accuracy": 0.75, "confusion": [[90, 10, 20], [5, 80, 15], [10, 0, 10]]}
    write_evaluation(config, task="multiclass", split="test", weights_sha256=card.weights_sha256, network=metrics, base_rate=metrics)
    page = rendered(config, card, Dataset(config.dataset).manifest())
    assert "Classes with few evaluated rows, whose figures say little: `\u00fcber` (20)." in page
    assert "- It was evaluated on only 240 rows." in page
    low, high = share_interval(0.75, count=240)
    assert f"| 0.7500 ({low:.4f} to {high:.4f}) |" in page


def test_intervals_are_those_of_the_papers() -> None:
    assert auc_interval(0.893, positives=51, negatives=58) == pytest.approx((0.893 - 1.96 * 0.032, 0.893 + 1.96 * 0.032), abs=2e-3)
    assert share_interval(0.5, count=10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert share_interval(0.0, count=10)[0] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("make", [image_workspace, text_workspace])
def test_the_program_of_a_card_gives_each_input_its_type_and_shape(tmp_path: Path, make: Any) -> None:
    config = make(tmp_path)
    card = load_card(config.run_url)
    signature = signature_of(card, Dataset(config.dataset).manifest().fields)
    text = snippet("model.onnx", signature, card.preprocessing)
    values: dict[str, Any] = {"numpy": np}
    exec(text[text.index("rows ="):text.index("answers =")], values)
    (only,) = values["rows"].values()
    assert (only.dtype, only.shape) == ((np.uint8, (1, 6, 5, 3)) if make is image_workspace else (np.int64, (1, 6)))


def test_the_command_writes_a_file_that_the_program_in_its_card_runs(run: Run, tmp_path: Path) -> None:
    config = table_workspace(tmp_path / "workspace")
    code, out, _ = run("export", write(tmp_path, "tiny.yaml", config.model_dump(mode="json")), "--to", "onnx", "--opset", "20")
    assert code == 0
    assert "ONNX model (opset 20) at " in out
    assert "inside: the filling and scaling of 3 numbers, the ids of 1 text\n" in out
    assert re.search(r"checked on 333 test rows: probability differs from torch by at most \d\.\de-\d\d \(allowed: 1e-05\)", out)
    folder = Path(config.run_url, "export")
    page = (folder / "model-card.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    ended = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    (said,) = re.findall(r"'probability': array\(\[([\d.]+)\]\)", ended.stdout)
    run_again = onnxruntime.InferenceSession(folder / "model.onnx")
    rows = {name: np.array([0.0]) for name in ("height", "weight", "age")} | {"colour": np.array(["blue"], object)}
    assert float(said) == pytest.approx(run_again.run(None, rows)[0][0], abs=1e-7)


def test_a_format_that_does_not_exist_ends_in_one_line(run: Run, tmp_path: Path) -> None:
    code, _, err = run("export", write(tmp_path, "tiny.yaml", sample_config(tmp_path).model_dump(mode="json")), "--to", "coreml")
    assert (code, err.splitlines()[-1]) == (2, "error: a model cannot be exported to coreml; choose onnx.")
