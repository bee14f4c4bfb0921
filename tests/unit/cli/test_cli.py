"""The command line: what it prints where, and with which exit code, for good input, bad input and bugs.

The operations themselves are tested where they live; here one of them is made to end in each way that an operation can.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.datasets import write_dataset
from sparkring import __main__ as cli
from sparkring import __version__
from sparkring.cli.terminal.answers import show_json
from sparkring.conf.schema import Config
from sparkring.errors import NotEnoughSlots, RankFailed
from sparkring.spark_jobs.report import ReportResult
from tests.support import seams
from tests.support.configs import MINIMAL, write

if TYPE_CHECKING:
    from tests.support.command_line import Run

pytest_plugins = ["tests.support.command_line"]


@pytest.fixture
def config(tmp_path: Path) -> str:
    return write(tmp_path, "tiny.yaml", MINIMAL | {"workspace": str(tmp_path / "workspace")})


def report_that(outcome: Callable[[], ReportResult]) -> Callable[..., ReportResult]:
    def report(config: Config, **_: object) -> ReportResult:
        return outcome()

    return report


def fail_with(error: BaseException) -> Callable[..., ReportResult]:
    def outcome() -> ReportResult:
        raise error

    return report_that(outcome)


def test_without_arguments_it_shows_the_commands(run: Run) -> None:
    _, out, _ = run()
    for command in ("demo", "prepare", "train", "evaluate", "score", "generate", "chaos", "report", "export", "doctor"):
        assert f" {command} " in out


@pytest.mark.parametrize("command", ["demo", "prepare", "train", "evaluate", "score", "generate", "chaos", "report", "export", "doctor"])
def test_the_help_of_each_command_shows_a_way_to_call_it(run: Run, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"sparkring {command}" in out.partition("Examples:")[2]
    assert "--set" in out
    assert "local/flights" in out


def test_it_tells_its_version(run: Run) -> None:
    assert run("--version") == (0, f"sparkring {__version__}\n", "")


def test_a_result_goes_to_stdout_and_progress_to_stderr(run: Run, config: str, tmp_path: Path) -> None:
    code, out, err = run("report", config)
    assert code == 0
    assert out == f"report at {tmp_path / 'workspace' / 'report.html'}\n"
    assert "report: done in" in err


def test_with_json_stdout_is_one_line_of_json(run: Run, config: str, tmp_path: Path) -> None:
    _, out, _ = run("report", config, "--json")
    assert out.count("\n") == 1
    assert json.loads(out)["path"] == str(tmp_path / "workspace" / "report.html")


def test_a_number_that_json_cannot_write_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"losses": [0.5, math.nan], "best": (-math.inf, 1)})
    assert capsys.readouterr().out == '{"losses": [0.5, null], "best": [null, 1]}\n'


def test_set_reaches_the_operation(run: Run, config: str, tmp_path: Path) -> None:
    _, out, _ = run("report", config, "--set", "name=other", "--set", f"workspace={tmp_path / 'elsewhere'}")
    assert str(tmp_path / "elsewhere" / "report.html") in out


def test_the_input_s_fault_is_one_line_on_stderr_and_exit_code_2(run: Run, config: str) -> None:
    code, out, err = run("train", config, "--set", "train.epoch=2")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: config ")
    assert "unknown key train.epoch; did you mean 'epochs'?" in err
    assert "Traceback" not in err


def test_the_cluster_s_fault_is_one_line_on_stderr_and_exit_code_2(
        run: Run, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.REPORT_REPORT, fail_with(NotEnoughSlots(wanted=8, slots=2, where="local[2]", remedy="add some")))
    code, out, err = run("report", config)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err == "error: local[2] has 2 of the 8 free slots needed at once; add some.\n"


def test_a_failed_rank_is_named_and_its_own_traceback_follows(run: Run, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = 'Traceback (most recent call last):\n  File "mine.py", line 3, in loss\nKeyError: \'label\''
    monkeypatch.setattr(seams.REPORT_REPORT, fail_with(RankFailed(1, "KeyError: 'label'", theirs)))
    code, _, err = run("report", config)
    assert code == 2
    assert err == f"error: rank 1 raised KeyError: 'label'; see its traceback:\n{theirs}\n"


def test_ctrl_c_exits_with_130_and_no_traceback(run: Run, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.REPORT_REPORT, fail_with(KeyboardInterrupt()))
    code, out, err = run("report", config)
    assert (code, out, err.splitlines()[-1]) == (130, "", "interrupted")
    assert "Traceback" not in err


def test_a_bug_keeps_its_traceback(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.REPORT_REPORT, fail_with(ZeroDivisionError("a bug of ours")))
    monkeypatch.setattr(sys, "argv", ["sparkring", "report", config])
    with pytest.raises(ZeroDivisionError, match="a bug of ours"):
        cli.main()


def test_notes_of_an_error_follow_it_a_line_each(run: Run, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = NotEnoughSlots(wanted=4, slots=2, where="local[2]", remedy="add two")
    error.add_note("Not restarted: a restart would not help.")
    error.add_note("a second note")
    monkeypatch.setattr(seams.REPORT_REPORT, fail_with(error))
    code, out, err = run("report", config)
    assert (code, out) == (2, "")
    assert err.splitlines()[-3:] == [f"error: {error}", "Not restarted: a restart would not help.", "a second note"]


def test_an_unknown_command_or_option_exits_with_2(run: Run) -> None:
    code, _, err = run("trian")
    assert code == 2
    assert "trian" in err
    assert run("report", "--epochs", "2")[0] == 2


@pytest.mark.parametrize("arguments", [
    pytest.param(["--help"], id="help"),
    pytest.param(["train", "--set", "train.epoch=2"], id="a mistake in the config"),
    pytest.param(["schedule", "1f1b"], id="a schedule"),
])
def test_what_needs_no_heavy_library_loads_none(arguments: list[str]) -> None:
    code = (f"import sys; sys.argv = ['sparkring', *{arguments}]\n"
            "from sparkring.__main__ import main\n"
            "try: main()\n"
            "except SystemExit: pass\n"
            "print({'torch', 'pyspark', 'horovod', 'pandas', 'pyarrow'} & sys.modules.keys())")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "set()"


@pytest.mark.timeout(60)
def test_a_real_interrupt_ends_a_real_process_with_130(tmp_path: Path) -> None:
    fifo = tmp_path / "config.yaml"
    os.mkfifo(fifo)  # reading it waits for a writer: the process is busy until the signal comes
    command = ["env", "--default-signal=INT", sys.executable, "-m", "sparkring", "report", str(fifo)]  # who runs tests may ignore it
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with fifo.open("wb"):  # opens once the process reads
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "interrupted\n")


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    return write_dataset(tmp_path / "dataset", ([400, 300], [500])).url


def test_datasets_are_listed_shown_and_verified(run: Run, dataset: str, tmp_path: Path) -> None:
    code, out, _ = run("datasets", "list", dataset)
    assert code == 0
    assert "train 1,200, validation 257" in out
    _, out, _ = run("datasets", "show", dataset)
    assert "colour  int32" in out
    assert "correlation of a row's label with the next row's" in out
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"{{extends: local/flights, dataset_url: '{dataset}'}}")
    assert run("datasets", "show", str(mine))[1] == out
    assert run("datasets", "show", "local/flights", "--set", f"dataset_url={dataset}")[1] == out
    _, out, _ = run("datasets", "verify", dataset)
    assert out == "version 1: all 3 files (0.0 MB) are unchanged\n"
    assert json.loads(run("datasets", "show", dataset, "--json")[1])["manifest"]["version"] == 1
    assert json.loads(run("datasets", "list", dataset, "--json")[1])[0]["files"] == 3


@pytest.mark.parametrize("command", [("datasets", "list"), ("datasets", "gc"), ("audit",), ("checkpoints", "list")], ids=" ".join)
@pytest.mark.parametrize("given", [("nix.yaml",), ("nix.yml",), ("nix", "--set", "workspace=x")], ids=" ".join)
def test_a_config_that_is_not_there_is_no_empty_folder(run: Run, command: tuple[str, ...], given: tuple[str, ...]) -> None:
    code, out, err = run(*command, *given)
    assert (code, out) == (2, "")
    assert f"no config named {given[0]}" in err


def test_a_damaged_dataset_is_one_line_on_stderr_and_exit_code_2(run: Run, dataset: str, tmp_path: Path) -> None:
    (tmp_path / "dataset/data/d1/train/part-1.parquet").unlink()
    code, out, err = run("datasets", "verify", dataset)
    assert (code, out) == (2, "")
    assert "error: version 1 of file:///" in err
    assert "data/d1/train/part-1.parquet is missing" in err.splitlines()[-1]


def test_differences_and_garbage_are_told(run: Run, dataset: str, tmp_path: Path) -> None:
    assert run("datasets", "diff", dataset, "1", "1")[1] == "versions 1 and 1 do not differ\n"
    code, _, err = run("datasets", "diff", dataset, "1", "2")
    assert (code, err.count("\n")) == (2, 1)
    left = tmp_path / "dataset/data/0123456789abcdef"
    left.mkdir()
    assert "kept, changed recently  data/0123456789abcdef" in run("datasets", "gc", dataset)[1]
    assert "nothing was deleted" in run("datasets", "gc", dataset, "--grace-hours", "0")[1]
    assert "deleted  data/0123456789abcdef" in run("datasets", "gc", dataset, "--grace-hours", "0", "--delete")[1]
    assert not left.exists()


def test_an_audit_without_events_says_what_to_name(run: Run, tmp_path: Path) -> None:
    code, out, err = run("audit", str(tmp_path))
    assert (code, out) == (2, "")
    assert "holds no events; name the folder of a run" in err


def test_a_folder_of_parquet_is_adopted(run: Run, tmp_path: Path) -> None:
    write_dataset(tmp_path / "made", ([400, 300], [500]))
    (tmp_path / "made/data/d1").rename(tmp_path / "theirs")
    code, out, _ = run("adopt", str(tmp_path / "theirs"), "--row-id", "row_id", "--label", "late", "--split", "train=train",
                       "--split", "validation=validation")
    assert code == 0
    assert out.startswith(f"dataset version 1 (plain Parquet, binary) at {(tmp_path / 'theirs').as_uri()}\n")
    assert "rows: train 1,200, validation 257" in out
    code, _, err = run("adopt", str(tmp_path / "theirs"), "--row-id", "row_id", "--label", "late", "--split", "train")
    assert (code, err.splitlines()[-1]) == (2, "error: --split train is not of the form NAME=FOLDER; give e.g. --split train=train.")


@pytest.mark.parametrize("command", [("audit",), ("adopt",), ("datasets", "list"), ("datasets", "show"), ("datasets", "diff"),
                                     ("datasets", "verify"), ("datasets", "gc"), ("runs", "list"), ("runs", "show"),
                                     ("runs", "compare"), ("runs", "remove")])
def test_the_help_of_the_data_commands_shows_a_way_to_call_them(run: Run, command: tuple[str, ...]) -> None:
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert f"sparkring {' '.join(command)} " in out.partition("Examples:")[2]


def test_the_help_of_train_shows_how_to_have_a_second_run_on_the_same_dataset(run: Run) -> None:
    _, out, _ = run("train", "--help")
    assert "--set run=wide --set 'model.hidden=[512,256]'" in " ".join(out.partition("Examples:")[2].split())
