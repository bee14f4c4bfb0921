"""Ranks forked off a server: as fresh as fresh processes, told of when they end, and never left behind."""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkring.spark_jobs.launch.rank.forked import KeptServer
from sparkring.spark_jobs.launch.rank.process import RankProcess
from sparkring.spark_jobs.launch.rank.server import NEEDED_TO_TRAIN
from tests.support import ring_probes
from tests.support.ring_driver import DEADLINE_S, ROOT, assert_no_process_left, ring_processes, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")


KEPT = KeptServer()
ON_IMPORT = """
import pathlib, sys, time

class OnImport:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            pathlib.Path({tried!r}).touch()
            {act}

sys.meta_path.insert(0, OnImport())
"""
"""Makes the import of a module fail or hang, where it stands as sitecustomize."""


START_A_SERVER = """
import os, time
from sparkring.spark_jobs.launch.rank.forked import RankServer
print(RankServer(dict(os.environ)).pid, flush=True)
time.sleep(600)
"""
START_A_RANK = """
import time
from tests.parallel.test_rank_server import Launched, kept_server, ring_probes
rank = Launched(ring_probes.end_as_told, "never")
rank.at_work()
print(kept_server().pid, rank.token, flush=True)
time.sleep(600)
"""


class Launched:
    """One rank without a ring, started as a Spark task starts it."""

    def __init__(self, fn: Callable[..., Any], *args: Any, fork: bool = True, **environment: str) -> None:
        self.token = uuid.uuid4().hex
        self._reports: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._exits: queue.SimpleQueue[int] = queue.SimpleQueue()
        env = plain(**environment) | {"SPARKRING_TOKEN": self.token, "CUDA_VISIBLE_DEVICES": ""}
        self.process = RankProcess("cpu", env=env, on_report=self._reports.put, on_exit=self._exits.put,
                                   kept=KEPT if fork else None)
        context = {"rank": 0, "hosts": [0], "device": "cpu", "token": self.token, "deadline_s": 10.0, "shared_memory": True}
        self.process.send(json.dumps({"context": context, "env": {}, "note": ""}).encode(), pickle.dumps((fn, args)))

    def report(self) -> Mapping[str, Any]:
        """What the rank reports."""
        return self._reports.get(timeout=DEADLINE_S)

    def result(self) -> Any:
        """The function's result, of a rank that has left."""
        report = self.report()
        assert report["kind"] == "done", report
        self.process.let_go()
        assert self.exit_code() == 0
        return report["result"]

    def exit_code(self) -> int:
        """How the rank ended."""
        return self._exits.get(timeout=DEADLINE_S)

    def at_work(self) -> None:
        """Wait until the rank and its child are there."""
        wait_until(lambda: "my last words" in self.process.tail and len(ring_processes(self.token)) >= 2, "the rank's child")


def plain(**environment: str) -> dict[str, str]:
    """An environment of ranks."""
    return dict(os.environ) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | environment


def kept_server() -> psutil.Process:
    """The server for a plain environment."""
    server = KEPT.serving(plain())
    assert server is not None
    return psutil.Process(server.pid)


def on_import(module: str, act: str, folder: Path) -> tuple[str, Path]:
    """A PYTHONPATH under which the import of ``module`` does ``act``, and the file that is there once it was tried."""
    tried = folder / "tried"
    (folder / "sitecustomize.py").write_text(ON_IMPORT.format(module=module, tried=str(tried), act=act), encoding="utf-8")
    return os.pathsep.join([str(folder), str(ROOT)]), tried


def test_a_server_serves_ranks_that_would_import_the_same_and_no_others() -> None:
    first = kept_server()
    assert kept_server() == first
    for launch_s_own in ("SPARKRING_TOKEN", "HOROVOD_CYCLE_TIME", "CUDA_VISIBLE_DEVICES"):
        server = KEPT.serving(plain(**{launch_s_own: "1"}))
        assert server is not None
        assert server.pid == first.pid
    other = KEPT.serving(plain(OMP_NUM_THREADS="2"))
    assert other is not None
    assert other.pid != first.pid
    assert not first.is_running()  # one at a time: each holds the memory of its imports


def test_a_forked_rank_is_what_a_fresh_one_is_and_finds_nothing_of_the_one_before() -> None:
    fresh = Launched(ring_probes.look, fork=False)
    forked = [Launched(ring_probes.look).result() for _ in range(2)]
    alone = fresh.result()
    assert [told["parent"] for told in (*forked, alone)] == [kept_server().pid, kept_server().pid, os.getpid()]
    unlike = [{what: (told["same"][what], wanted) for what, wanted in alone["same"].items() if told["same"][what] != wanted}
              for told in forked]
    assert unlike == [{}, {}]
    assert [told["left"] for told in forked] == [[""], [""]]
    assert not set(forked[0]["drawn"]) & set(forked[1]["drawn"])
    assert forked[0]["name"] != forked[1]["name"]
    assert forked[0]["name"].startswith("rank-")


def test_a_rank_has_cloudpickle_without_all_of_spark() -> None:
    assert [Launched(ring_probes.has_imported, module).result() for module in ("cloudpickle", "pyspark", "pandas")] == [True, False, False]


def test_beside_its_first_long_rank_a_server_imports_what_training_needs() -> None:
    own = "a server of its own"
    assert Launched(ring_probes.has_imported, NEEDED_TO_TRAIN, SPARKRING_TEST=own).result() is False  # too short
    rank = Launched(ring_probes.has_imported, NEEDED_TO_TRAIN, SPARKRING_TEST=own)
    assert rank.report()["result"] is False
    server = KEPT.serving(plain(SPARKRING_TEST=own))
    assert server is not None
    process = psutil.Process(server.pid)
    before_s = process.cpu_times().user
    wait_until(lambda: process.cpu_times().user > before_s + 0.3, "the server to import")
    rank.process.let_go()
    assert rank.exit_code() == 0
    assert Launched(ring_probes.has_imported, NEEDED_TO_TRAIN, SPARKRING_TEST=own).result() is True


def test_a_module_that_cannot_be_imported_ahead_harms_no_rank(tmp_path: Path) -> None:
    path, tried = on_import(NEEDED_TO_TRAIN, 'raise RuntimeError("half installed")', tmp_path)
    rank = Launched(ring_probes.look, PYTHONPATH=path)
    assert rank.report()["kind"] == "done"
    wait_until(tried.exists, "the server to try")
    rank.process.let_go()
    assert rank.exit_code() == 0


def test_ten_launches_leave_no_process_and_no_file_in_server_and_task() -> None:
    server, task = kept_server(), psutil.Process()
    files = [Launched(ring_probes.open_files_of).result()]
    few = server.num_fds(), task.num_fds()
    files += [Launched(ring_probes.open_files_of).result() for _ in range(10)]
    # Each closes its last pipe of a launch just after the other has heard of the end.
    wait_until(lambda: server.num_fds() <= few[0] and task.num_fds() <= few[1], "server and task to hold no more than after one launch")
    assert (server.num_threads(), server.children()) == (1, [])
    assert files == [["/dev/null", "pipe", "pipe", "pipe", "pipe"]] * 11  # output twice, orders, reports


@pytest.mark.parametrize(("how", "code"), [
    ("exit", 3), ("SIGSEGV", -signal.SIGSEGV), ("asked", -signal.SIGTERM), ("ended", -signal.SIGKILL)])
def test_it_is_told_how_a_forked_rank_ended_and_what_it_started_ends_too(how: str, code: int) -> None:
    rank = Launched(ring_probes.end_as_told, how)
    if how in ("asked", "ended"):
        rank.at_work()
        rank.process.ask_to_stop() if how == "asked" else rank.process.end()
    assert rank.exit_code() == code
    assert rank.process.tail == "my last words"
    assert_no_process_left(rank.token)
    assert kept_server().children() == []


@pytest.mark.parametrize("fork", [True, False], ids=["forked", "fresh"])
def test_a_rank_that_has_done_its_work_leaves_quickly_but_does_and_says_all_that_it_owes(fork: bool) -> None:
    rank = Launched(ring_probes.say_at_exit, fork=fork)
    rank.result()
    assert set(rank.process.tail.splitlines()) == {"said by Python", "said by C", "called at exit"}


def test_control_of_a_fresh_rank_a_daemon_is_left_since_nobody_takes_it_in() -> None:
    rank = Launched(ring_probes.end_as_told, "exit", fork=False)
    assert rank.exit_code() == 3
    left = [process for process in psutil.process_iter() if _environment(process).get("SPARKRING_TOKEN") == rank.token]
    assert sorted(process.name() for process in left) == ["sh", "sleep"]
    for process in left:
        process.kill()
    assert_no_process_left(rank.token)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:  # it ended meanwhile, or is not ours to look into
        return {}


def test_a_server_that_is_killed_takes_its_rank_along_and_the_next_launch_has_another() -> None:
    server = kept_server()
    rank = Launched(ring_probes.end_as_told, "never")
    rank.at_work()
    server.kill()
    assert rank.exit_code() == -signal.SIGKILL
    assert f"the rank server {server.pid}, off which this rank was forked, ended with exit code -9" in rank.process.tail
    assert_no_process_left(rank.token)
    assert Launched(ring_probes.look).result()["parent"] == kept_server().pid != server.pid


def test_sigterm_to_all_processes_is_the_rank_s_to_act_on_and_the_server_stays() -> None:
    server = kept_server()
    rank = Launched(ring_probes.end_as_told, "never")
    rank.at_work()
    server.terminate()
    rank.process.ask_to_stop()
    assert (rank.exit_code(), rank.process.tail) == (-signal.SIGTERM, "my last words")
    assert Launched(ring_probes.look).result()["parent"] == server.pid


def test_a_server_that_was_sent_sigterm_still_ends_with_its_task_and_its_rank_too() -> None:
    task = subprocess.Popen([sys.executable, "-c", START_A_RANK], env=plain(), stdout=subprocess.PIPE, text=True)
    with task:
        assert task.stdout is not None
        pid, token = task.stdout.readline().split()
        server = psutil.Process(int(pid))
        server.terminate()
        task.kill()
    wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, "the server to end")
    assert_no_process_left(token)


def test_a_server_whose_imports_hang_ends_with_its_task(tmp_path: Path) -> None:
    path, tried = on_import("torch", "time.sleep(600)", tmp_path)
    task = subprocess.Popen([sys.executable, "-c", START_A_SERVER], env=plain(PYTHONPATH=path), stdout=subprocess.PIPE, text=True)
    with task:
        assert task.stdout is not None
        server = psutil.Process(int(task.stdout.readline()))
        wait_until(tried.exists, "the server to import")
        server.terminate()
        assert server.is_running()
        task.kill()
    wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, "the server to end")


def test_a_rank_whose_end_a_stopped_server_cannot_tell_of_is_found_to_stand_still() -> None:
    server = kept_server()
    rank = Launched(ring_probes.end_as_told, "never")
    rank.at_work()
    server.suspend()
    try:
        assert not rank.process.is_suspended  # the control: it works on
        server.children()[0].kill()
        wait_until(lambda: rank.process.is_suspended, "the rank to stand still")
        rank.process.end()
        assert_no_process_left(rank.token)
    finally:
        server.resume()
    assert rank.exit_code() == -signal.SIGKILL
    assert not rank.process.is_suspended


def test_a_rank_that_is_ended_while_its_server_still_imports_never_comes_to_be() -> None:
    rank = Launched(ring_probes.end_as_told, "never", MAKES="another server")
    rank.process.end()
    assert rank.exit_code() == -signal.SIGKILL
    assert (rank.process.tail, ring_processes(rank.token)) == ("", [])


def test_where_something_starts_threads_ranks_are_fresh_processes(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    rank = Launched(ring_probes.look, PYTHONPATH=path)
    assert rank.result()["parent"] == os.getpid()
    assert "start as fresh processes" in rank.process.tail
    assert KEPT.serving(plain(PYTHONPATH=path)) is None  # and no server is tried again
