"""A decoder in stages on Spark: evaluated and writing through a ring of ranks as Spark's tasks and one process do."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkring
from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import ConfigError
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.generate import generate
from sparkring.spark_jobs.prepare import prepare
from tests.support import seams
from tests.support.command_line import exit_code
from tests.support.configs import write
from tests.support.etl_tables import save_untrained

pytest_plugins = ["tests.support.spark_sessions"]

PROMPTS = ["x = ", "", "# grüße"]


def _config(folder: Path) -> Config:
    settings = {
        "sources": {"code": {"format": "text", "path": str(folder / "code"), "pattern": "*.py"}},
        "query": "SELECT path, content FROM code", "task": "next_token", "num_files": 1,
        "features": {"tokens": {"column": "content", "document": "path", "length": 32}},
        "split": {"by": "hash", "column": "path", "validation_share": 0.2, "test_share": 0.2}}
    return parse_config({"name": "code", "workspace": str(folder / "workspace"), "run": "first", "prepare": settings,
                         "model": {"kind": "text", "width": 16, "layers": 2, "heads": 2, "dropout": 0.1}}, origin="test")


def _in_stages(config: Config) -> Config:
    layout: dict[str, Any] = {"num_ranks": 2, "parallel": {"replicas": [1, 1], "micro_batches": 4}}
    return config.model_copy(update={"train": TrainConfig.model_validate(config.train.model_dump() | layout)})


@pytest.fixture(scope="module")
def config(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A prepared dataset of small programs and an untrained decoder."""
    folder = tmp_path_factory.mktemp("code")
    for number in range(60):
        path = folder / "code" / f"{'abc'[number % 3]}/m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {number}  # grüße {'.' * (number % 40)}\n", encoding="utf-8")
    made = _config(folder)
    prepare(made, spark=spark)
    save_untrained(made)
    return made


def test_a_ring_of_stages_evaluates_as_spark_s_tasks_do(spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    by_tasks = evaluate(config, spark=spark)
    Path(config.run_url, "evaluation.json").unlink()
    monkeypatch.setattr(seams.EVALUATE_PREDICT, None)  # no task of Spark holds the model now
    by_stages = evaluate(_in_stages(config), spark=spark)
    assert by_stages["network"] == pytest.approx(by_tasks["network"], rel=1e-5)
    assert by_stages["base_rate"] == by_tasks["base_rate"]


def test_stages_write_the_texts_of_one_process_and_the_same_again(spark: SparkSession, config: Config) -> None:
    for temperature in (0.0, 1.0):
        alone, again = (generate(config, PROMPTS, max_tokens=20, temperature=temperature, seed=3) for _ in range(2))
        assert alone == again
        assert generate(_in_stages(config), PROMPTS, max_tokens=20, temperature=temperature, seed=3, spark=spark) == alone
        assert [one.prompt for one in alone] == PROMPTS
        assert all(one.tokens == 20 or one.ended for one in alone)
        other = generate(config, PROMPTS, max_tokens=20, temperature=temperature, seed=4)
        assert (other == alone) == (temperature == 0.0)
    assert inspect.unwrap(sparkring.generate) is generate


def test_the_command_line_writes_texts_without_spark(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "code.yaml", config.model_dump(mode="json"))
    said = []
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["sparkring", "generate", file, "--prompt", "x = ", "--prompt", "y", "--tokens", "5", *more])
        assert exit_code() == 0
        said.append(capsys.readouterr().out)
    first, second = json.loads(said[1])
    assert said[0] == f"x = {first['text']}\n\ny{second['text']}\n"
    assert first["tokens"] <= 5


def test_what_cannot_write_is_refused_in_a_sentence(config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="temperature=-1 cannot be used; give at least one token"):
        generate(config, ["x"], temperature=-1)
    with pytest.raises(ConfigError, match="holds no run yet; run `sparkring train`"):
        generate(config.model_copy(update={"workspace": str(tmp_path)}), ["x"])
