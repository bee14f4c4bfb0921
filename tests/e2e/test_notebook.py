"""Notebooks in a real kernel: the example runs, progress is one block, and an interrupted training resumes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.notebooks import Cell, find_uv, install_tools, run_notebook

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.skipif(find_uv() is None, reason="no uv here")]

INTERRUPTED = """\
# %%
from pyspark.sql import SparkSession
import sparkring
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.range(10**15).selectExpr("id", "id % 2 = 0 AS late").createOrReplaceTempView("endless")
sparkring.init("endless", label="late")

# %%
spark.range(4000).selectExpr("id", "rand(1) AS x", "rand(2) > 0.5 AS late").createOrReplaceTempView("dice")
sparkring.init("dice", label="late")
sparkring.prepare("dice.yaml")

# %%
result = sparkring.train("dice.yaml", num_ranks=2, epochs=EPOCHS, batch_rows=32, checkpoint_steps=1000)

# %%
result = sparkring.train("dice.yaml", num_ranks=2, epochs=EPOCHS, batch_rows=32, checkpoint_steps=1000)
print(result.resumed_at, result.steps, result.epochs)
print(spark.range(7).count())

# %%
model = sparkring.TorchClassifier(labelCol="late", numRanks=2, epochs=1).fit(spark.table("dice"))
"""


@pytest.fixture(scope="module")
def tools() -> Path:
    return install_tools()


def test_the_example_runs_and_shows_its_report_and_its_progress_as_one_block_a_call(tools: Path, tmp_path: Path) -> None:
    cells = run_notebook(ROOT / "examples/notebooks/flights.py", tools=tools, cwd=tmp_path)
    assert [cell.error for cell in cells if cell.error] == []
    trained, shown = _with(cells, "sparkring.train("), _with(cells, "sparkring.show(")
    bars = trained.displayed("text/html")
    assert len(bars) == 2, "prepare's and train's"
    assert re.search(r"train.*100%.*loss", bars[1])
    assert "held-out" in bars[1]
    (page,) = shown.displayed("text/html")
    assert page.startswith("<iframe srcdoc=")
    assert "&lt;svg" in page
    assert "How good it is" in page
    (words,) = shown.displayed("text/plain")
    assert re.search(r"^  held-out ROC AUC +0\.\d+", words, flags=re.MULTILINE), words


def test_interrupted_jobs_end_and_an_interrupted_training_has_saved_and_the_same_cell_resumes_it(tools: Path, tmp_path: Path) -> None:
    notebook = tmp_path / "dice.py"
    notebook.write_text(INTERRUPTED.replace("EPOCHS", "40"), encoding="utf-8")
    endless, prepared, first, second, fitted = run_notebook(notebook, tools=tools, cwd=tmp_path,
                                                            interrupt_at=("measuring", r"(?m)^train: [1-9]\d?%"))
    assert endless.error is not None
    assert endless.error["ename"] == "KeyboardInterrupt"
    assert not (tmp_path / "endless.yaml").exists()
    assert prepared.error is None
    assert first.error is not None
    assert first.error["ename"] == "KeyboardInterrupt"
    saved = re.search(r"stopped as asked \(Ctrl-C\) after (\d+) steps, which are saved", first.error["evalue"])
    assert saved, first.error
    assert re.search(r"^train: [1-9]\d?% in .*stopped", first.displayed("text/plain")[-1], flags=re.MULTILINE)
    assert second.error is None
    resumed, session = second.stdout.splitlines()
    assert resumed.split()[0] == saved.group(1)
    assert session == "7", "the session is whole"
    assert fitted.error is None
    assert re.findall(r"(prepare|train): 100%", "\n".join(fitted.displayed("text/plain"))) == ["prepare", "train"]


def _with(cells: list[Cell], words: str) -> Cell:
    (found,) = [cell for cell in cells if words in cell.source]
    return found
