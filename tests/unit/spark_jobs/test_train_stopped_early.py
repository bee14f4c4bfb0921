"""A run that is asked to stop before its ring exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from sparkring.errors import Stopped
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.train import train
from tests.support import seams
from tests.support.training import train_config


@pytest.mark.parametrize("asked", ["before the session", "while the session is made"])
def test_a_run_that_is_asked_to_stop_before_there_are_ranks_starts_none(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    write_dataset(tmp_path / "dataset", ([400, 300], [500]))
    config = train_config(tmp_path / "workspace", dataset_url=str(tmp_path / "dataset"), train={"epochs": 1})
    stop, sessions = StopRequest(), list[str]()

    def session(*_: Any, **__: Any) -> object:
        sessions.append("made")
        stop.ask("SIGTERM")
        return object()  # any use of it is an error

    monkeypatch.setattr(seams.SESSION_SPARK_SESSION, session)
    if asked == "before the session":
        stop.ask("SIGTERM")
    with pytest.raises(Stopped, match=r"stopped as asked \(SIGTERM\) before ranks were started; "):
        train(config, stop=stop)
    assert sessions == ([] if asked == "before the session" else ["made"])
    assert not [file for file in (tmp_path / "workspace").rglob("*") if file.is_file() and file.name != ".lock"]
