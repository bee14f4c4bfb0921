"""A wait for another rank ends, in a typed error that says which; and the traps of Horovod, each beside what happens without care.

T1 to T11 are the numbers by which the traps are known in this project's notes on parallelism; T6 is in test_process_sets.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError

from harness.ranks import run_on_ranks
from sparkring.errors import DeadlinePassed, PeerSilent, RingError
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.horovod_handles import await_handles
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.shared_memory.named_files import paths_of
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.spark_jobs.launch.rank.environment import settings
from tests.support.transports import WAYS, both_ways, opened, started, transport

pytestmark = pytest.mark.parallel
every_way = pytest.mark.parametrize("way", WAYS)
F, B = both_ways((0, 1))
DEADLINE_S = 2.0
MORE_THAN_SOCKETS_HOLD = 1 << 24
"""Numbers of four bytes: of less the sockets of both ranks might take all, as if the other rank had received it."""


def _fail(fault: str) -> None:
    """What rank 1 does after its first message."""
    if fault == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "raises":
        raise ValueError("a bug in a stage")
    signal.pause()


def _fault(context: RankContext, way: str, fault: str) -> tuple[PeerSilent | None, str]:
    """Rank 1 fails after one message; rank 0 waits for a second one, or for rank 1 to take one. Returns the launch's token too."""
    communicator = started(context, way, [F, B])
    link = transport(communicator, way, [F, B])
    if context.rank == 1:
        link.send(B, 0, [torch.ones(10**5)])
        link.drain()
        _fail(fault)
    link.receive(B, 0)
    if fault in ("sleeps", "takes nothing"):
        link._deadline_s = DEADLINE_S  # the others are noticed before the deadline
    link.journal.note("F1 of chunk 0")
    try:
        if fault == "takes nothing":
            link.send(F, 0, [torch.ones(MORE_THAN_SOCKETS_HOLD)])
            link.drain()
        else:
            link.receive(B, 1)
    except PeerSilent as error:
        return error, context.token
    return None, context.token


@every_way
@pytest.mark.parametrize("fault", ["is killed", "raises", "sleeps", "takes nothing"])
def test_a_rank_that_waits_for_one_that_fails_says_so_in_time(way: str, fault: str) -> None:
    """T7: the end of one rank is the end of Horovod on all others."""
    if (way, fault) == ("sidecar memory", "takes nothing"):
        pytest.skip("through memory a message is gone when it is sent")
    error, token = run_on_ranks(2, _fault, way, fault, doomed=(1,))[0]
    assert isinstance(error, PeerSilent)
    assert (error.rank, error.peer) == (0, 1)
    doing = "draining micro-batch 0 on edge f1 0>1" if fault == "takes nothing" else "receiving micro-batch 1 on edge b1 1>0"
    assert error.doing == f"{doing} by {way.partition(' ')[0]}"
    assert any("F1 of chunk 0" in action for action in error.last_actions)
    if fault in ("is killed", "raises"):
        assert (": the ring has ended, so some rank raised or died (" if way == "horovod" else ": rank 1 has ended (") in str(error)
    else:
        assert not error.ended
        assert ": rank 1 did not respond; see rank 1's last lines, or raise train.ring.deadline_s" in str(error)
    assert not paths_of(token)


def _names(context: RankContext) -> list[str]:
    """Ranks of different histories: rank 0 has begun one operation more than rank 1."""
    said = []
    other = Edge(0, 1, "other")
    with opened(context, "horovod", [F, B, other]) as (communicator, link):
        left_over = hvd.allgather_async(torch.ones(1), name="only rank 0 does this") if context.rank == 0 else None
        for edge in (F, B, other):  # T3: three messages of the same micro-batch between the same two ranks
            if edge.source == context.rank:
                link.send(edge, 7, [torch.ones(10)])
        if context.rank == 0:
            try:
                link.send(F, 7, [torch.ones(10)])
            except RingError as error:
                said.append(str(error))
            try:
                for _ in range(2):
                    hvd.allgather_async(torch.ones(1), name="twice")
            except (HorovodInternalError, ValueError) as error:
                said.append(str(error))
        communicator.barrier("tried")
        said += [f"{edge}: {int(link.receive(edge, 7)[0].sum())}" for edge in (F, B, other) if edge.target == context.rank]
        unnamed = hvd.allgather_async(torch.ones(1))
        try:
            await_handles([unnamed], what="unnamed", deadline_s=1.0)
            said.append("unnamed operations met")
        except DeadlinePassed:
            said.append("unnamed operations did not meet")
        assert left_over is None or not hvd.poll(left_over)
    return said


def test_t1_t3_operations_meet_by_edge_direction_and_micro_batch_where_counted_or_repeated_names_do_not() -> None:
    first, second = run_on_ranks(2, _names)
    assert first[0] == ("micro-batch 7 on edge f1 0>1 is in flight already: rank 1 has not received the last one; "
                        "receive it before sending it again.")
    assert "same name" in first[1]  # the control for T3
    assert first[2:] == ["b1 1>0: 10", "unnamed operations did not meet"]
    assert second == ["f1 0>1: 10", "other 0>1: 10", "unnamed operations did not meet"]  # the control for T1


def _scaled(context: RankContext) -> tuple[float, float]:
    """What rank 0 gets as the gradient of a number that rank 1 has multiplied by 3: by our messages, and by Horovod's own broadcast."""
    with opened(context, "horovod", [F, B]) as (communicator, link):
        theirs = torch.ones(1, requires_grad=True)
        (hvd.broadcast(theirs, root_rank=0, name="theirs") * 3.0 * context.rank).sum().backward()
        communicator.barrier("theirs")
        if context.rank == 0:
            link.send(F, 0, [torch.ones(1)])
            return float(link.receive(B, 0)[0]), float(theirs.grad or 0.0)
        received = link.receive(F, 0)[0].requires_grad_()
        (received * 3.0).sum().backward()
        assert received.grad is not None
        link.send(B, 0, [received.grad])
        return 0.0, 0.0


def test_t2_a_gradient_crosses_a_border_as_it_is_where_horovods_operations_average_it() -> None:
    ours, theirs = run_on_ranks(2, _scaled)[0]
    assert ours == 3.0
    assert theirs == 1.5  # the control; that of an allreduce is in test_tensor_parallel.py


def _stall(context: RankContext) -> tuple[bool, str]:
    os.environ.update({"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"})
    communicator = started(context, "horovod", [F, B])
    link = transport(communicator, "horovod", [F, B])
    if context.rank == 1:
        signal.pause()
    handle = hvd.allgather_async(torch.ones(1), name="only rank 0 asks")
    link._deadline_s = 4.0  # twice what Horovod was told to shut down after
    try:
        link.receive(B, 0)
    except PeerSilent as error:
        return hvd.poll(handle), str(error)
    return hvd.poll(handle), ""


def test_t4_our_deadline_ends_a_wait_that_horovods_stall_check_sleeps_through() -> None:
    shut_down, error = run_on_ranks(2, _stall, doomed=(1,))[0]
    assert not shut_down
    assert ": rank 1 did not respond" in error


def _world(context: RankContext, care: bool) -> tuple[str, int]:
    if care:
        with Communicator(context, extra_sets=[(1, 0), (0, 1), (0,), (1,)]) as communicator:
            return "", communicator.process_set((0, 1)).size()
    try:
        hvd.init(process_sets=[hvd.ProcessSet([0, 1])])
    except (ValueError, RuntimeError) as error:
        return str(error), 0
    return "", 0


def test_t5_a_set_of_the_whole_ring_is_horovods_global_one() -> None:
    assert run_on_ranks(2, _world, True) == [("", 2), ("", 2)]
    for error, _ in run_on_ranks(2, _world, False):  # the control: named as a set of its own, it is a duplicate
        assert error.startswith("Horovod initialization failed")


ROUNDS = 200
"""Of sums after a rank has left: enough for the others to hear of it."""


def _leave(context: RankContext, care: bool) -> tuple[str, int]:
    """Rank 2 has nothing left to do while ranks 0 and 1 go on to sum over a set that it is not in."""
    with ExitStack() as stack:
        communicator = Communicator(context, extra_sets=[(0, 1)])
        if care:
            stack.enter_context(communicator)
        if context.rank == 2:
            if not care:
                hvd.shutdown()
            return "", ROUNDS
        for done in range(ROUNDS):
            try:
                hvd.synchronize(hvd.allreduce_async(torch.ones(1), name=f"sum.{done}", process_set=communicator.process_set((0, 1))))
            except (HorovodInternalError, ValueError) as error:
                return str(error), done
        return "", ROUNDS


def test_t7_a_rank_that_is_done_first_waits_for_the_others_whose_ring_would_end_with_it() -> None:
    assert run_on_ranks(3, _leave, True) == [("", ROUNDS)] * 3
    left = run_on_ranks(3, _leave, False, doomed=(2,))[:2]  # the control
    assert all(re.search("has been shut down|does not exist", said) and done < ROUNDS for said, done in left), left


def _processor_s(context: RankContext, way: str) -> tuple[float, float]:
    """Seconds of processor time that the waiting thread spends in a wait of a second: ours, and asking Horovod again and again."""
    spent = []
    with opened(context, way, [F, B]) as (communicator, link):
        for ours in (True, False):
            communicator.barrier(f"begin {ours}")
            if context.rank == 1:
                time.sleep(1)  # what the other rank waits for
            began = time.thread_time()
            if not ours:
                handle = hvd.allgather_async(torch.ones(1), name="waited for")
                while not hvd.poll(handle):
                    pass
                hvd.synchronize(handle)
            elif context.rank == 1:
                link.send(B, 0, [torch.ones(1)])
            else:
                link.receive(B, 0)
            spent.append(time.thread_time() - began)
    return spent[0], spent[1]


@every_way
def test_t8_a_wait_leaves_the_processor_to_others(way: str) -> None:
    ours, control = run_on_ranks(2, _processor_s, way)[0]
    assert ours < control / 4


def _starved(context: RankContext, timeout_s: str) -> str:
    """Rank 1 gets no processor for 5 seconds, while rank 0 waits for its message."""
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = timeout_s
    communicator = started(context, "horovod", [F, B])
    link = transport(communicator, "horovod", [F, B])
    if context.rank == 1:
        with subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()}"]):
            os.kill(os.getpid(), signal.SIGSTOP)
            link.send(B, 0, [torch.ones(10)])
            link.drain()
        return "sent"
    try:
        return f"received {int(link.receive(B, 0)[0].sum())}"
    except PeerSilent as error:
        return error.ended


def test_t10_a_starved_rank_costs_its_ring_only_time_where_gloos_timeout_is_long() -> None:
    assert settings(threads=1, deadline_s=119.5)["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "120", "what every launcher sets: our deadline"
    assert run_on_ranks(2, _starved, "60", doomed=(1,))[0] == "received 10"
    assert run_on_ranks(2, _starved, "2", doomed=(1,))[0] not in ("", "received 10")


def _without_rank_0(context: RankContext) -> tuple[float, str]:
    """Ranks 1 and 2 sum gradients by themselves: by our ring, and by Horovod's optimizer with groups."""
    group = (1, 2) if context.rank else (0,)
    with Communicator(context, extra_sets=[(1, 2)]) as communicator:
        layer = torch.nn.Linear(1, 1, bias=False)
        ring = GradientRing(layer.parameters(), communicator, bucket_mb=1, group=group)
        ring.begin(0.0)
        (layer(torch.ones(1, 1)) * context.rank).sum().backward()
        ring.finish()
        assert layer.weight.grad is not None
        summed, said = float(layer.weight.grad), ""
        if context.rank:
            try:
                hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), named_parameters=layer.named_parameters(), groups=1,
                                         process_set=communicator.process_set((1, 2)))
            except (HorovodInternalError, ValueError, RuntimeError) as error:
                said = f"{type(error).__name__}: {error}"
        communicator.barrier("tried")
        ring.close()
        return summed, said


def test_t9_replicas_without_rank_0_sum_their_gradients_where_horovods_optimizer_asks_for_rank_0() -> None:
    alone, *others = run_on_ranks(3, _without_rank_0)
    assert alone == (0.0, "")
    assert [summed for summed, _ in others] == [3.0, 3.0]
    assert all(said for _, said in others)  # the control


def _life(context: RankContext) -> float:
    """What ranks 0 and 1 sum over their set."""
    with Communicator(context, extra_sets=[(0, 1)]) as communicator:
        if context.rank == 2:
            return 0.0
        return float(hvd.allreduce(torch.ones(1), name="pair", op=hvd.Sum, process_set=communicator.process_set((0, 1))))


def _second_life_in_place(context: RankContext) -> str:
    """The same after the ring has ended and started again in the same processes, as an elastic ring does; what went wrong."""
    _life(context)
    pair = hvd.ProcessSet([0, 1])
    hvd.init()
    if context.rank < 2:
        try:
            hvd.allreduce(torch.ones(1), name="pair", op=hvd.Sum, process_set=pair)
        except (HorovodInternalError, ValueError, RuntimeError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _second_lives() -> list[str]:
    try:
        return run_on_ranks(3, _second_life_in_place, deadline_s=20)
    except AssertionError as ended:  # Horovod's second start crashes or hangs, where it does not just forget the set
        return [str(ended)] * 3


def test_t11_a_ring_starts_again_in_new_processes_as_it_loses_its_sets_in_those_it_had() -> None:
    assert [run_on_ranks(3, _life) for _ in range(2)] == [[2.0, 2.0, 0.0]] * 2
    assert all(_second_lives()[:2])  # the control
