"""Strategies side by side: the words that ask for them, and what is said of runs whose numbers are known."""

from __future__ import annotations

from typing import Any

import pytest

from sparkring.conf.schema.strategy import LocalSgdConfig, StaleSyncConfig
from sparkring.errors import ConfigError
from sparkring.spark_jobs.comparing.strategies import sections_of
from sparkring.spark_jobs.reporting.comparison.charts import comparison_pictures
from sparkring.spark_jobs.reporting.comparison.facts import Compared, compared, verdict


def test_words_stand_for_whole_sections() -> None:
    local, stale = LocalSgdConfig().model_dump(), StaleSyncConfig().model_dump()
    assert sections_of("exact, local_sgd:8,local_sgd,stale_sync:0") == {
        "exact": {"kind": "exact"}, "local_sgd:8": {**local, "every_steps": 8}, "local_sgd": local, "stale_sync:0": {**stale, "bound": 0}}


@pytest.mark.parametrize(("words", "message"), [
    ("exact", "needs at least two; name them"), ("", "needs at least two"), ("exact,exact", "exact stands there twice; name each once"),
    ("exact,stale_snc:4", "stale_snc is none; did you mean 'stale_sync'"), ("exact,local_sgd:0", "greater than 0; give a larger"),
    ("exact:3,local_sgd", "exact:3 is none: a whole number may follow in local_sgd:EVERY_STEPS, stale_sync:BOUND; leave out"),
    ("exact,local_sgd:x", "local_sgd:x is none"), ("stale_sync,stale_sync:4", "stale_sync and stale_sync:4 mean the same; leave one")])
def test_words_that_are_none_are_refused(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sections_of(words)


def _step(rank: int, number: int, *, time: float, loss: float, rows: int = 5, generation: int = 0, **more: Any) -> dict[str, Any]:
    return {"event": "step", "generation": generation, "rank": rank, "epoch": 0, "step": number, "time": time, "loss": loss, "rows": rows,
            "global_rows": 10, "data_s": 0.0, "compute_s": 1.0, "comm_s": 0.0, **more}


def _run(word: str, *records: dict[str, Any], loss: float = 0.3) -> Compared:
    return compared(word, "v1-run", [*records, {"event": "epoch", "train_loss": loss}], {"auc": 0.7})


def test_a_step_counts_once_with_the_bytes_of_all_ranks_and_the_mean_loss_of_local_models() -> None:
    run = _run("local_sgd:2", _step(0, 0, time=11.0, loss=0.8), _step(1, 0, time=11.5, loss=0.4),
               _step(0, 1, time=12.0, loss=0.5, sent_bytes=1_000_000), _step(1, 1, time=12.0, loss=0.5, sent_bytes=1_000_000))
    assert (run.steps, run.seconds, run.sent_bytes, run.loss) == (2, pytest.approx(1.5), 2e6, 0.3)
    assert run.by_step.y == pytest.approx((0.6, 0.5))
    assert run.by_megabyte.x == pytest.approx((0.0, 2.0))
    assert run.staleness is None


def test_a_step_done_again_counts_where_it_was_done_last_and_the_pause_between_does_not_count() -> None:
    run = _run("exact", _step(0, 0, time=1.0, loss=0.8, rows=10), _step(0, 1, time=2.0, loss=9.0, rows=10),
               _step(0, 1, time=900.0, loss=0.5, rows=10, generation=1))  # its own second counts, and the step before it
    assert (run.steps, run.by_step.y) == (2, pytest.approx((0.8, 0.5)))
    assert run.seconds == pytest.approx(2.0)


def test_the_paragraph_is_made_of_the_numbers() -> None:
    exact = _run("exact", *(_step(0, place, time=2.0 * place, loss=0.6 - 0.1 * place, rows=10, sent_bytes=100) for place in range(4)))
    stale = _run("stale_sync:4", *(_step(place % 2, place, time=float(place), loss=0.65 - 0.12 * place, rows=10, staleness=place % 2)
                                   for place in range(4)), loss=0.31)
    assert stale.staleness == 0.5
    assert verdict([exact, stale]) == (
        "After 4 steps exact has the lowest train loss (0.3000). stale_sync:4 took the least time (4\u00a0s). stale_sync:4 sent the least "
        "(0\u00a0B). Time to a train loss of 0.3100, which all had in their last epoch: exact 7\u00a0s, stale_sync:4 4\u00a0s.")
    assert [picture.name for picture in comparison_pictures([exact, stale])] == ["loss-by-step", "loss-by-second", "loss-by-megabyte"]
    never = _run("local_sgd", _step(0, 0, time=1.0, loss=0.9, rows=10))
    assert verdict([exact, never]).endswith("exact 7\u00a0s, local_sgd never.")
