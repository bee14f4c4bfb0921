"""Fifty faults in stages, half of them nightly: kill, raise, sleep and wrong shape, at any place and moment. Each rank says what it met.

Stage, replica, moment and schedule of a fault are drawn from a seed, for each way of messages by itself. A ring goes through
several faults that its ranks survive, trains once without a fault (the control), and ends by a kill. After that the others'
processes end by themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.shared_memory.named_files import paths_of
from tests.support.faulty_stages import BUG, DEADLINE_S, MICRO_BATCHES, STEPS, Fault, draw_faults, launches, suffer
from tests.support.transports import WAYS, kind_of

COUNT, SEED = 17, 6
"""Faults for each way of messages."""
FAULTS = [fault for way in WAYS for fault in draw_faults(COUNT, way=way, seed=SEED)]
RINGS = launches(FAULTS)
TYPED = {"PeerSilent", "PipelineShapeError", "DeadlinePassed", "RingEnded"}
PLACE = re.compile(rf"stage (\d), (micro-batch [0-{MICRO_BATCHES - 1}], \w+(/\d)?|REDUCE|STEP)")
Told = dict[str, Any]


def _name(ring: Sequence[Fault]) -> str:
    return f"{ring[0].mesh.size} ranks: {', '.join(fault.kind for fault in ring)}"


@pytest.mark.parametrize("ring", [
    pytest.param(ring, id=_name(ring), marks=[pytest.mark.nightly] if number % 2 else []) for number, ring in enumerate(RINGS)])
def test_every_rank_says_in_time_what_it_met_with(ring: list[Fault], tmp_path: Path) -> None:
    size, kill = ring[0].mesh.size, ring[-1]
    run_on_ranks(size, suffer, ring, str(tmp_path), doomed=(kill.rank,), must_end=True)
    told = [[json.loads(line) for line in (tmp_path / f"rank-{rank}.jsonl").read_text().splitlines()] for rank in range(size)]
    whole = [len(ring) + (rank != kill.rank) for rank in range(size)]
    assert [len(lines) for lines in told] == whole
    for number, fault in enumerate(ring[:-1]):
        _check(fault, [lines[number] for lines in told])
    undisturbed = [lines[len(ring) - 1] for lines in told]
    assert [told["error"] for told in undisturbed] == ["none"] * size, undisturbed
    assert all(len(told["losses"]) == STEPS for told in undisturbed)
    _check(kill, [lines[-1] if rank != kill.rank else {} for rank, lines in enumerate(told)])
    assert not paths_of(undisturbed[0]["token"])


def _check(fault: Fault, told: list[Told]) -> None:
    """By rank: the one that fails, and the others."""
    for rank, said in enumerate(told):
        stage = fault.mesh.coordinate(rank).stage
        if rank == fault.rank and fault.kind != "wrong shape":
            own = {"kill": None, "raise": "ValueError", "sleep": "slept"}[fault.kind]
            assert said.get("error") == own, f"{fault}: {said}"
            if fault.kind == "raise":
                assert said["text"] == BUG
                assert f"rank {rank} (stage {stage}, " in said["place"], f"{fault}: {said}"
            continue
        assert said["error"] in TYPED, f"{fault}: rank {rank} met with {said}"
        found = PLACE.fullmatch(said["place"])
        assert found, f"{fault}: {said}"
        assert int(found[1]) == stage
        assert said["text"].startswith(f"rank {rank} ({said['place']})")
        assert said["last_actions"], f"{fault}: {said}"
        assert said["waited_s"] < 5 * DEADLINE_S
        if said["error"] == "PeerSilent":
            doing = rf"(receiv|send|expect|drain)ing micro-batch \d+ on edge [fb]\d+ \d>\d by {kind_of(fault.way)}"
            assert re.search(doing, said["text"]), said["text"]
    if fault.kind == "wrong shape":
        assert told[fault.rank]["error"] == "PipelineShapeError", f"{fault}: {told[fault.rank]}"
        assert [said["error"] for said in told].count("PipelineShapeError") > 1, f"{fault}: nobody was told of the shape: {told}"
