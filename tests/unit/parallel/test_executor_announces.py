"""A rank announces what it will receive before it computes: Horovod carries nothing that nobody waits for, and sockets little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from sparkring.conf.schema import TransportName
from sparkring.models.blocks import LOGITS, Block, BlockList, StageModule, X
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Schedule, Worker
from sparkring.pipelines.parallel.stages.edges import edge_of
from sparkring.pipelines.parallel.stages.executor import Executor
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.journal import Journal

MICRO_BATCHES = 6
ROWS = {micro_batch: 3 + micro_batch % 2 for micro_batch in range(MICRO_BATCHES)}
Message = tuple[Edge, int, int]


class Recorder:
    """A transport that gives zeros at once and notes what it was asked for."""

    name: TransportName = "sidecar"

    def __init__(self) -> None:
        self.journal = Journal()
        self.announced: Counter[Message] = Counter()
        self.received: list[Message] = []

    def send(self, edge: Edge, micro_batch: int, tensors: Sequence[Tensor], *, rows: int = 0) -> None:
        """Nobody takes it."""

    def expect(self, edge: Edge, micro_batch: int, *, rows: int = 0) -> None:
        self.announced[edge, micro_batch, rows] += 1

    def receive(self, edge: Edge, micro_batch: int, *, rows: int = 0) -> list[Tensor]:
        self.received.append((edge, micro_batch, rows))
        return [torch.zeros(rows, 1)]

    def drain(self) -> None:
        """Nothing is on its way."""

    def close(self) -> None:
        """Nothing is open."""


class Work:
    """A step whose loss is the sum of what comes out."""

    def batch(self, micro_batch: int) -> dict[str, Tensor]:
        return {X: torch.ones(ROWS[micro_batch], 1)}

    def loss(self, _micro_batch: int, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs[LOGITS].sum()

    def last_backward(self) -> None: ...

    def reduce(self) -> None: ...

    def step(self, _loss: float) -> None: ...


class Watched(Executor):
    """Looks, whenever something is computed, at what has been announced and not yet received."""

    awaited: list[tuple[Action, set[Message]]]

    def _do(self, action: Action, work: object) -> None:
        if action.kind in (Kind.F, Kind.B, Kind.I, Kind.W):
            transport = self._transport
            assert isinstance(transport, Recorder)
            self.awaited.append((action, set((transport.announced - Counter(transport.received)).keys())))
        super()._do(action, work)  # type: ignore[arg-type]


def _rank(worker: Worker) -> int:
    return worker.stage


def _watched(schedule: Schedule, stage: int, chunks: int) -> tuple[Watched, Recorder]:
    last = schedule.num_chunks - 1
    blocks = BlockList(tuple(Block(str(number), {str(number): lambda: nn.Linear(1, 1)}, writes=(LOGITS if number == last else X,))
                             for number in range(last + 1)), inputs=(X,))
    own = range(stage, last + 1, schedule.num_chunks // chunks)
    recorder = Recorder()
    executor = Watched(schedule, Worker(stage, 0), {chunk: StageModule(blocks, first=chunk, last=chunk + 1, seed=1) for chunk in own},
                       rank_of=_rank, transport=recorder)
    executor.awaited = []
    return executor, recorder


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize(("name", "chunks"), [("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2)])
def test_while_a_rank_computes_the_next_message_of_each_edge_may_come(name: str, chunks: int, stage: int) -> None:
    schedule = build_schedule(name, (1, 1, 1), MICRO_BATCHES, chunks_per_stage=chunks)
    executor, recorder = _watched(schedule, stage, chunks)
    for _ in range(2):  # a step announces nothing of the next one
        executor.run(Work(), rows=ROWS.__getitem__)
    assert recorder.announced == Counter(recorder.received)
    assert set(recorder.announced.values()) == {2}
    receives = [(place, (edge_of(schedule, action, _rank), action.micro_batch, ROWS[action.micro_batch]))
                for place, action in enumerate(schedule.actions[Worker(stage, 0)]) if action.kind in (Kind.RECV_F, Kind.RECV_B)]
    for action, awaited in executor.awaited[len(executor.awaited) // 2:]:
        place = schedule.actions[Worker(stage, 0)].index(action)
        first_of_edge = {message[0]: message for at, message in reversed(receives) if at > place}
        assert awaited == set(first_of_edge.values()), action.text()


def test_so_it_is_where_a_model_is_only_judged() -> None:
    executor, recorder = _watched(build_schedule("1f1b", (1, 1, 1), MICRO_BATCHES), 1, 1)
    list(executor.predict(Work().batch, rows=ROWS.__getitem__))
    assert recorder.announced == Counter(recorder.received)
    assert {edge.name for edge, _, _ in recorder.received} == {"f1"}
    assert len(recorder.received) == MICRO_BATCHES
