"""How many slots a transport needs so that no two messages under one name are ever on their way at once. Pure.

A message is named by its edge and by micro-batch modulo a window. The lists say which receive must have happened before a send
can begin, however fast or slow anybody is: whatever the sender has received so far, and all that its peers had done when they
sent that. Each worker carries that knowledge along as a count of actions of every other worker.

    stage 0   F0 SEND_F0 F1 SEND_F1 RECV_B0 B0 F2 SEND_F2       B0 came, so F0 was received: at most F1 and F2 are on their way,
    stage 1   RECV_F0 F0 B0 SEND_B0 RECV_F1 F1 ...              a window of 2 will do

Source: Mattern 1989, "Virtual Time and Global States of Distributed Systems" (vector clocks).
"""

from __future__ import annotations

from sparkring.errors import ScheduleStuck
from sparkring.pipelines.parallel.schedule import Action, Kind, Schedule

_ARRIVALS = {Kind.SEND_F: (Kind.RECV_F, 1), Kind.SEND_B: (Kind.RECV_B, -1)}
_RECEIVES = (Kind.RECV_F, Kind.RECV_B)


def slot_window(schedule: Schedule) -> int:
    """The least window at which messages of one edge on their way at once have different ``micro_batch % window``.

    A message is on its way until its receiver has it; a transport that learns of that later needs one more.

    Args:
        schedule: With transfers.
    Returns:
        At least 1.
    Raises:
        ScheduleStuck: The lists wait for each other.
    """
    return _Walk(schedule).run()


class _Walk:
    """All lists walked side by side; who is where, and what it knows of the others."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.lists = [schedule.actions[worker] for worker in schedule.workers]
        self.numbers = {worker: number for number, worker in enumerate(schedule.workers)}
        self.received_at = [{action: place for place, action in enumerate(actions) if action.kind in _RECEIVES} for actions in self.lists]
        self.known = [[0] * len(self.lists) for _ in self.lists]
        """By worker: how many actions of each worker it knows to be done, its own included."""
        self.sent: dict[Action, list[int]] = {}
        """By receive: what its sender knew."""
        self.on_edge: dict[tuple[int, int, Kind, int], list[Action]] = {}
        """By sender, receiver, direction and chunk: receives that the sender does not know to be done."""

    def run(self) -> int:
        """Walk to the end; the window."""
        window, before = 1, -1
        while sum(map(sum, self.known)) != before:
            before = sum(map(sum, self.known))
            window = max([window, *map(self._walk_on, range(len(self.lists)))])
        waits = [(str(worker), self.schedule.text(self.lists[number][self.known[number][number]]), "its sender")
                 for worker, number in self.numbers.items() if self.known[number][number] < len(self.lists[number])]
        if waits:
            raise ScheduleStuck(self.schedule.name, waits)
        return window

    def _walk_on(self, number: int) -> int:
        """Take one worker as far as it can; the window that its sends need."""
        actions, mine, window = self.lists[number], self.known[number], 1
        while mine[number] < len(actions):
            action = actions[mine[number]]
            if action.kind in _RECEIVES:
                if action not in self.sent:
                    break
                mine[:] = map(max, mine, self.sent[action])
            mine[number] += 1
            if action.kind in _ARRIVALS:
                window = max(window, self._send(number, action))
        return window

    def _send(self, number: int, action: Action) -> int:
        """Put a message on its way; how far apart the micro-batches on its edge can be."""
        kind, step = _ARRIVALS[action.kind]
        arrival = Action(kind, action.chunk + step, action.micro_batch)
        receiver = self.numbers[self.schedule.peer(action)]
        done, places = self.known[number][receiver], self.received_at[receiver]
        edge = self.on_edge.setdefault((number, receiver, kind, arrival.chunk), [])
        edge[:] = [*(other for other in edge if other not in places or places[other] >= done), arrival]
        self.sent[arrival] = list(self.known[number])
        numbers = [other.micro_batch for other in edge]
        return max(numbers) - min(numbers) + 1
