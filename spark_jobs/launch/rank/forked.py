"""Ranks forked off a rank server (``server.py``), which this process keeps from launch to launch: the Spark worker's side.

Spark keeps its Python workers for the next tasks, so the second launch finds the server that the first one started. A server
serves launches of the same interpreter, folder and environment, apart from the variables that each launch sets, because the
imports depend on these. For any other launch, or if the server has died, a new one is started. The server ends with this process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

from sparkring.spark_jobs.launch.rank import environment as rank_environment
from sparkring.spark_jobs.launch.rank.fresh import RankPipes, end_group, is_suspended

POSSIBLE = sys.platform == "linux"
"""On other systems forking a process that has loaded torch is unsafe or impossible."""

ImportKey: TypeAlias = "tuple[str, str, frozenset[tuple[str, str]]]"
"""All that a rank's imports depend on: interpreter, folder, environment."""


class ForkUnavailable(Exception):
    """No rank can be forked; the message gives the reason."""


class RankServer:
    """A rank server, child of this process.

    Args:
        env: Environment of the ranks to come.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.imported = import_key(env)
        self.has_forked = False
        """Whether it has forked a rank: its imports are done, and the next fork takes milliseconds."""
        self._control, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sparkring.spark_jobs.launch.rank.server", str(its_end.fileno())],
                env=dict(self.imported[2]) | {"CUDA_VISIBLE_DEVICES": ""}, pass_fds=[its_end.fileno()],
                stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it has neither ended nor been suspended."""
        return self._process.poll() is None and not is_suspended(self.pid)

    def ask(self, device: str, *, env: Mapping[str, str], pipes: RankPipes) -> IO[bytes]:
        """Ask for a rank, and return the pipe of the answers.

        Raises:
            ForkUnavailable: the server has ended.
        """
        request = {"device": device, "environment": {name: value for name, value in env.items() if rank_environment.varies_by_launch(name)}}
        answers, its_answers = os.pipe()
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], [pipes.orders, pipes.output, pipes.reports, its_answers])
        except OSError as error:
            os.close(answers)
            raise ForkUnavailable(str(error)) from error
        finally:
            os.close(its_answers)
        return os.fdopen(answers, "rb")

    def end(self) -> int:
        """End it if it still runs, and return its exit code."""
        self._control.close()
        self._process.kill()
        return self._process.wait()


class ForkedRank:
    """A rank that a server forks.

    Raises:
        ForkUnavailable: the server cannot fork it.
    """

    def __init__(self, server: RankServer, device: str, *, env: Mapping[str, str], pipes: RankPipes) -> None:
        self.note = ""
        self._server = server
        self._answers = server.ask(device, env=env, pipes=pipes)
        reply = self._read_reply()
        if "pid" not in reply:
            self._answers.close()
            raise ForkUnavailable(reply.get("problem") or f"the rank server ended with exit code {server.end()}")
        self.pid: int = reply["pid"]
        server.has_forked = True

    def wait(self) -> int:
        """See ``RunningRank``. If the server was killed, so was the rank, and the exit code is the server's."""
        with self._answers:
            reply = self._read_reply()
        if "exit" in reply:
            return int(reply["exit"])
        end_group(self.pid)
        code = self._server.end() or -signal.SIGKILL
        self.note = f"the rank server {self._server.pid}, off which this rank was forked, ended with exit code {code}, and the rank with it"
        return code

    def _read_reply(self) -> dict[str, Any]:
        """The next answer, or an empty one if the server is gone."""
        line = self._answers.readline()
        reply: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        return reply


class KeptServer:
    """The server that a process keeps for its later launches, if it has one."""

    def __init__(self) -> None:
        self._server: RankServer | None = None
        self._hopeless: set[ImportKey] = set()

    def serving(self, env: Mapping[str, str]) -> RankServer | None:
        """A server for ranks of this environment, started if necessary; None if no rank can be forked."""
        imported = import_key(env)
        if not POSSIBLE or imported in self._hopeless:
            return None
        if self._server is not None and not (self._server.runs and self._server.imported == imported):
            self._server.end()
            self._server = None
        if self._server is None:
            self._server = RankServer(env)
        return self._server

    def give_up(self, server: RankServer) -> None:
        """End a server that cannot fork, and start none like it again."""
        server.end()
        self._hopeless.add(server.imported)



def import_key(env: Mapping[str, str]) -> ImportKey:
    """All that the imports of ranks with this environment depend on."""
    folder = ""
    with suppress(FileNotFoundError):
        folder = str(Path.cwd())
    return sys.executable, folder, frozenset((name, value) for name, value in env.items() if not rank_environment.varies_by_launch(name))
