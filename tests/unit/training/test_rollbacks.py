"""How often a run goes back, and what it leaves out then."""

from __future__ import annotations

from sparkring.pipelines.training.loop.rollbacks import Rollbacks


def _left_out(rollbacks: Rollbacks) -> list[int]:
    return [step for step in range(300) if rollbacks.leaves_out(step)]


def test_first_the_step_is_left_out_and_then_all_that_led_up_to_it() -> None:
    rollbacks = Rollbacks(3)
    assert _left_out(rollbacks) == []
    assert "leaving out step 137 of the run (1 of 3 times)" in (rollbacks.back(to=100, spoiled=137) or "")
    assert _left_out(rollbacks) == [137]
    assert "after 100 steps, leaving out steps 100 to 140" in (rollbacks.back(to=100, spoiled=140) or "")
    assert _left_out(rollbacks) == list(range(100, 141))


def test_a_new_checkpoint_gives_all_tries_back_and_without_one_they_are_used_up() -> None:
    rollbacks = Rollbacks(2)
    said = [rollbacks.back(to=to, spoiled=spoiled) is not None for to, spoiled in ((0, 5), (0, 6), (100, 105), (100, 106), (100, 107))]
    assert said == [True, True, True, True, False]
    assert Rollbacks(0).back(to=0, spoiled=1) is None
