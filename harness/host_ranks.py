"""Horovod ranks on hosts of namespaces (hosts.py): ``run_on_hosts((alpha, beta), "benchmarks.transport:between_hosts")``.

    this process                              a process on each host (``main`` below)
    starts the first host's                -> serves the ring's rendezvous, writes its port
    starts the others' with that port      -> each calls the function and writes what it returned, as JSON
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from harness.hosts import INTERFACE, Host
from harness.ranks import horovod_environment
from sparkring.pipelines.parallel.context import RankContext

DEADLINE_S = 300.0


def run_on_hosts(made: Sequence[Host], function: str, *args: Any, ranks_per_host: int = 1,
                 deadline_s: float = DEADLINE_S) -> list[Any]:
    """Call ``function(context, *args)`` on the ranks of each host, and return the results by rank.

    Args:
        made: The hosts.
        function: Module and name, e.g. ``benchmarks.transport:between_hosts``.
        args: They and the results can be written as JSON.
        ranks_per_host: Ranks of each host.
        deadline_s: Seconds to wait for the results.
    Raises:
        AssertionError: a rank failed; it has written why to this process's standard error.
    """
    places = [place for place in range(len(made)) for _ in range(ranks_per_host)]
    order: dict[str, Any] = {"function": function, "args": args, "hosts": places, "token": secrets.token_hex(16),
                             "address": made[0].address}
    with ExitStack() as stack:
        ranks = []
        for rank, place in enumerate(places):
            command = made[place].command([sys.executable, "-m", "harness.host_ranks", json.dumps(order | {"rank": rank})])
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True))
            stack.callback(process.kill)
            ranks.append(process)
            if rank == 0:
                assert process.stdout is not None
                order["port"] = int(process.stdout.readline())
        said = [process.communicate(timeout=deadline_s)[0] for process in ranks]
        assert [process.returncode for process in ranks] == [0] * len(places), "a rank failed; see its traceback above"
    return [json.loads(lines.splitlines()[-1]) for lines in said]


def main() -> None:
    """Be the rank of the order in the command line."""
    order = json.loads(sys.argv[1])
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from horovod.runner.http.http_server import RendezvousServer

    server = None
    if order["rank"] == 0:
        server = RendezvousServer(verbose=0)
        order["port"] = server.start()
        server.init([])
        print(order["port"], flush=True)
    context = RankContext(rank=order["rank"], hosts=tuple(order["hosts"]), device="cpu", token=order["token"], deadline_s=60.0,
                          shared_memory=True)
    os.environ.update(horovod_environment(context, address=order["address"], port=order["port"], interface=INTERFACE))
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    torch.set_num_threads(1)
    module, _, name = order["function"].partition(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(context, *order["args"])), flush=True)
    if server is not None:
        server.stop()


if __name__ == "__main__":
    main()
