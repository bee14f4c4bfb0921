"""The line that ``sparkring submit`` composes, and what it stages."""

from __future__ import annotations

import io
import os
import shlex
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from sparkring import __version__
from sparkring.conf.loading import load_config, parse_config
from sparkring.errors import ConfigError
from sparkring.spark_jobs.submission import submit as submit_module
from sparkring.spark_jobs.submission.submit import Job, Submission, make_submission
from tests.support.command_line import exit_code
from tests.support.configs import MINIMAL, write
from tests.support.training import await_condition

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = "spark.conf.spark.submit.deployMode=cluster"


def options(submission: Submission) -> dict[str, list[str]]:
    """Values of the options of a line, by name."""
    found: dict[str, list[str]] = {}
    words = iter(submission.command[1:])
    for word in words:
        if word.startswith("--"):
            found.setdefault(word, []).append(next(words))
    return found


@pytest.fixture(autouse=True)
def _a_spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 7\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))


def test_the_shipped_yarn_config_is_a_line_that_says_all(tmp_path: Path) -> None:
    config = load_config("yarn/flights", [CLUSTER])
    made = make_submission(config, Job.TRAIN, folder=tmp_path / "staged")
    assert shlex.split(made.line) == list(made.command)
    assert made.command[0] == str(tmp_path / "spark" / "bin" / "spark-submit")
    found = options(made)
    assert (found["--master"], found["--deploy-mode"], found["--name"]) == (["yarn"], ["cluster"], ["sparkring flights"])
    properties = {key: value for key, value in config.spark.conf.items() if key != "spark.submit.deployMode"}
    assert dict(text.split("=", 1) for text in found["--conf"]) == properties
    assert {"spark.yarn.queue", "spark.executor.memoryOverhead"} <= properties.keys()
    assert found["--py-files"] == [str(made.folder / f"sparkring-{__version__}.zip")]
    assert found["--files"] == [str(made.folder / "job.yaml")]
    assert made.command[-3:] == (str(made.folder / "job.py"), "train", "job.yaml")


def test_with_the_driver_here_the_config_is_named_by_its_path(tmp_path: Path) -> None:
    made = make_submission(load_config("yarn/flights"), Job.DEMO, folder=tmp_path / "staged")
    assert options(made)["--deploy-mode"] == ["client"]
    assert "--files" not in made.line
    assert made.command[-1] == str(made.folder / "job.yaml")


def test_networks_go_along_under_names_that_are_nobody_else_s(tmp_path: Path) -> None:
    files = [tmp_path / "a/job.py", tmp_path / "b/job.py", tmp_path / "torch.py"]
    for number, file in enumerate(files):
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"x = {number}", encoding="utf-8")
    made = make_submission(load_config("yarn/flights", [CLUSTER]), Job.TRAIN, folder=tmp_path / "staged", networks=files)
    names = options(made)["--networks"]
    assert [(made.folder / name).read_text(encoding="utf-8") for name in names] == ["x = 0", "x = 1", "x = 2"]
    assert options(made)["--files"] == [",".join(str(made.folder / name) for name in ("job.yaml", *names))]
    assert "main()" in (made.folder / "job.py").read_text(encoding="utf-8")
    assert not any(Path(name).stem.isidentifier() for name in names), "an import could find it"


def test_what_is_staged_is_the_config_and_the_code_that_run_here(tmp_path: Path) -> None:
    config = load_config("yarn/flights", ["train.epochs=7"])
    made = make_submission(config, Job.TRAIN, folder=tmp_path / "staged")
    assert load_config(str(made.folder / "job.yaml")) == config
    with zipfile.ZipFile(made.folder / f"sparkring-{__version__}.zip") as archive:
        names = set(archive.namelist())
    assert {"sparkring/__init__.py", "sparkring/py.typed", "sparkring/conf/base/flights.yaml", "sparkring/spark_jobs/launch/rank/main.py",
            "sparkring/spark_jobs/reporting/page.css"} <= names
    assert not [name for name in names if "__pycache__" in name or not name.startswith("sparkring/")]
    assert not [name for name in names if name.startswith(tuple(f"sparkring/{room}/{room}/" for room in submit_module.ROOMS))]
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700


def test_equal_submissions_share_a_folder_and_others_do_not(tmp_path: Path) -> None:
    folders = [make_submission(load_config("yarn/flights", overrides), Job.TRAIN, folder=tmp_path).folder
               for overrides in ([], [], ["train.epochs=7"])]
    assert folders[0] == folders[1] != folders[2]
    assert len(list(tmp_path.glob("[!s]*"))) == 2


def test_a_wheel_goes_along_as_a_zip_and_something_else_is_refused(tmp_path: Path) -> None:
    wheel, other = io.BytesIO(), tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sparkring/__init__.py", "")
    (tmp_path / "mine.whl").write_bytes(wheel.getvalue())
    config = load_config("yarn/flights")
    made = make_submission(config, Job.TRAIN, folder=tmp_path / "staged", package=tmp_path / "mine.whl")
    assert (made.folder / f"sparkring-{__version__}.zip").read_bytes() == wheel.getvalue()
    other.write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=r"other\.whl is no wheel of sparkring"):
        make_submission(config, Job.TRAIN, folder=tmp_path / "staged", package=other)


@pytest.mark.parametrize(("overrides", "found"), [
    pytest.param(["spark.master=null"], "needs spark.master, e.g. yarn; found none", id="no master"),
    pytest.param(["spark.master=null", "spark.remote=sc://host"], "found spark.remote", id="Spark Connect"),
    pytest.param(["spark.conf.spark.hadoop.fs.s3a.secret.key=x"], "process list", id="a secret"),
    pytest.param(["workspace=runs/here"], r"workspace=runs/here is a relative path, and executors run", id="a relative workspace"),
    pytest.param(["prepare.sources.trips.path=trips.csv", CLUSTER], r"prepare.sources.trips.path=trips.csv is a relative path, and the "
                 "driver", id="a source here, with the driver there"),
])
def test_what_would_not_work_there_is_refused(tmp_path: Path, overrides: list[str], found: str) -> None:
    document = tmp_path / "mine.yaml"
    document.write_text(yaml.safe_dump(MINIMAL | {"workspace": "/mnt/shared/x", "spark": {"master": "yarn"}}), encoding="utf-8")
    with pytest.raises(ConfigError, match=found):
        make_submission(load_config(str(document), overrides), Job.TRAIN, folder=tmp_path / "staged")
    control = parse_config(MINIMAL | {"workspace": "/mnt/shared/x", "spark": {"master": "yarn"}}, origin="test")
    assert make_submission(control, Job.TRAIN, folder=tmp_path / "staged").folder.is_dir()


def test_paths_of_a_file_stay_as_written_where_the_driver_is_elsewhere_and_are_whole_where_it_is_here(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = MINIMAL | {"workspace": "/mnt/shared/x", "spark": {"master": "yarn"}, "train": {"cache_folder": "cache"}}
    document, away = write(tmp_path, "mine/job.yaml", values), ["prepare.sources.trips.path=hdfs:///trips.csv", CLUSTER]
    monkeypatch.chdir(tmp_path)
    staged = [make_submission(document, Job.TRAIN, overrides=overrides, folder=tmp_path / "staged").folder
              for overrides in ([], ["prepare.sources.trips.path=trips.csv"], away)]
    plain = [yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8")) for folder in staged]
    assert [(each["prepare"]["sources"]["trips"]["path"], each["train"]["cache_folder"]) for each in plain] == [
        (str(tmp_path / "mine/trips.csv"), str(tmp_path / "mine/cache")), (str(tmp_path / "trips.csv"), str(tmp_path / "mine/cache")),
        ("hdfs:///trips.csv", "cache")]
    with pytest.raises(ConfigError, match="workspace=runs/tiny is a relative path"):
        make_submission(write(tmp_path, "mine/other.yaml", values | {"workspace": "runs/tiny"}), Job.TRAIN, folder=tmp_path / "staged")


def test_the_command_prints_the_line_or_runs_it_and_ends_as_it_does(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    codes = []
    for arguments in (["--job", "train", "--print"], ["--job", "train"]):
        monkeypatch.setattr(sys, "argv", ["sparkring", "submit", "yarn/flights", *arguments])
        codes.append(exit_code())
    again = make_submission(load_config("yarn/flights"), Job.TRAIN, folder=submit_module.default_folder())
    assert codes == [0, 7]
    assert capsys.readouterr().out == f"{again.line}\n"


@pytest.mark.parametrize(("number", "driver_here", "said", "code"), [
    pytest.param(signal.SIGTERM, True, "the driver saves\n", 143, id="the driver runs here"),
    pytest.param(signal.SIGTERM, False, "spark-submit ends\n", 5, id="the driver runs in the cluster"),
    pytest.param(signal.SIGINT, True, "the driver saves\n", 130, id="Ctrl-C")])
def test_a_signal_is_forwarded_to_the_driver(tmp_path: Path, number: int, driver_here: bool, said: str, code: int) -> None:
    program, started = tmp_path / "job.py", tmp_path / "started"
    program.write_text("import pathlib, signal, sys\n"
                       "def end(*_): print('the driver saves', flush=True); sys.exit(143)\n"
                       "signal.signal(signal.SIGTERM, end)\n"
                       f"pathlib.Path({str(started)!r}).touch()\n"
                       "signal.pause()\n", encoding="ascii")
    spark_submit = tmp_path / "spark-submit.py"
    spark_submit.write_text("import os, pathlib, signal, subprocess, sys\n"
                            "ended = subprocess.Popen(['true'])  # which nobody waits for, as in bin/spark-class\n"
                            "os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)\n"
                            "def end(*_): print('spark-submit ends', flush=True); sys.exit(5)\n"
                            "signal.signal(signal.SIGTERM, end)\n"
                            f"if {driver_here}: sys.exit(subprocess.run([sys.executable, {str(program)!r}]).returncode)\n"
                            f"pathlib.Path({str(started)!r}).touch()\n"
                            "signal.pause()\n", encoding="ascii")
    code_of_run = ("import sys; from pathlib import Path; from sparkring.spark_jobs.submission.submit import Submission\n"
                   f"sys.exit(Submission((sys.executable, {str(spark_submit)!r}), Path({str(tmp_path)!r})).run())")
    with subprocess.Popen([sys.executable, "-c", code_of_run], cwd=ROOT, stdout=subprocess.PIPE, text=True, process_group=0) as command:
        await_condition(started.exists, "the start")
        os.killpg(command.pid, number)  # as a terminal does
        assert (command.communicate(timeout=60)[0], command.returncode) == (said, code)
