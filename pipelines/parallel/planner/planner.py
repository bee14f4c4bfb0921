"""The ranked table of layouts, each with its predicted step, its memory and the reason in words. Pure, given measurements.

    plan(model, cluster, world=4, batch_rows=1024) -> [Plan, ...]      the fastest first; those that cannot be used last
    best_layout(...)                               -> Plan             or LayoutRefused, if none can be used
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparkring.errors import LayoutRefused
from sparkring.pipelines.parallel.planner.cost_model import Cluster, ModelProfile
from sparkring.pipelines.parallel.planner.enumerate import UNCONSTRAINED, Candidate, Constraints, candidates, remedies
from sparkring.pipelines.parallel.planner.prediction import Prediction, predict

NEGLIGIBLE = 0.02
"""Relative difference of two steps that counts as none: predictions are not more accurate."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One row of the table."""

    prediction: Prediction
    reason: str

    @property
    def candidate(self) -> Candidate:
        """The layout."""
        return self.prediction.candidate

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step; infinite if the layout cannot be used."""
        return self.prediction.seconds

    def section(self) -> dict[str, object]:
        """The ``train`` section of a config for this layout."""
        chosen = self.candidate
        if chosen.is_plain:
            return {"num_ranks": chosen.num_ranks, "parallel": {}}
        parallel: dict[str, object] = {"replicas": list(chosen.replicas), "micro_batches": chosen.micro_batches}
        if chosen.shards > 1:
            parallel["shards"] = chosen.shards
        if chosen.num_chunks > 1:
            parallel |= {"schedule": chosen.schedule, "cut": list(self.prediction.cut), "transport": self.prediction.transport}
        if chosen.chunks_per_stage > 1:
            parallel["chunks_per_stage"] = chosen.chunks_per_stage
        if chosen.recompute != "never":
            parallel["recompute"] = chosen.recompute
        if chosen.shard_optimizer:
            parallel["shard_optimizer"] = True
        return {"num_ranks": chosen.num_ranks, "parallel": parallel}


def plan(model: ModelProfile, cluster: Cluster, *, world: int, batch_rows: int, fixed: Constraints = UNCONSTRAINED) -> list[Plan]:
    """Predict every layout worth trying.

    Args:
        model: Costs of its blocks.
        cluster: Machines and links.
        world: Ranks that are available.
        batch_rows: Rows of a step over all ranks.
        fixed: Limits on the choice.
    Returns:
        The fastest first, and of equally fast layouts the simpler first. The very first is the simplest of those that no prediction
        can tell from the fastest.
    """
    shards = (1, *(count for count in model.shards if cluster.keeps_together(count)))  # shards between hosts were not measured
    tried = [_smallest_that_fits(model, cluster, candidate, batch_rows) for candidate in candidates(
        world, num_blocks=len(model.blocks), batch_rows=batch_rows, shards=shards, fixed=fixed)]
    ranked = _best_first(sorted(tried, key=_rank))
    return [Plan(prediction=prediction, reason=_reason(prediction, ranked)) for prediction in ranked]


def best_layout(model: ModelProfile, cluster: Cluster, *, world: int, batch_rows: int, fixed: Constraints = UNCONSTRAINED) -> Plan:
    """The layout with the shortest predicted step; arguments as in ``plan``.

    Raises:
        LayoutRefused: none can be used; the message says why the smallest cannot.
    """
    plans = plan(model, cluster, world=world, batch_rows=batch_rows, fixed=fixed)
    if not plans:
        remedy = (f"shards can be {', '.join(map(str, sorted(model.shards))) or 'none'} here, on one host, and the model has "
                  f"{len(model.blocks)} blocks; give other train.parallel.replicas, shards or micro_batches, or leave them out."
                  if fixed.replicas else "give another train.parallel.micro_batches, or leave it out.")
        raise LayoutRefused(f"no layout on up to {world} ranks has {fixed.describe()} for {batch_rows} rows a step; {remedy}")
    if plans[0].prediction.refused:
        nearest = min(plans, key=lambda each: max(memory.total for memory in each.prediction.memory))
        raise LayoutRefused(f"no layout on up to {world} ranks can be used: the smallest, {describe(nearest.candidate)}, "
                            f"{nearest.prediction.refused}; give ranks more memory, take more of them, or a smaller train.batch_rows.")
    return plans[0]


def one_each(plans: Sequence[Plan]) -> list[Plan]:
    """The best plan of each shape and schedule, in the given order, for a table."""
    first: dict[tuple[object, ...], Plan] = {}
    for each in plans:
        first.setdefault((each.candidate.replicas, each.candidate.shards, each.candidate.schedule, each.candidate.chunks_per_stage), each)
    return list(first.values())


def describe(candidate: Candidate) -> str:
    """A layout in a few words."""
    if candidate.num_ranks == 1:
        return "one rank"
    replicas = "+".join(map(str, candidate.replicas))
    shards = f" of {candidate.shards} shards" if candidate.shards > 1 else ""
    if candidate.num_stages == 1:
        return f"{replicas} {'replica' if replicas == '1' else 'replicas'}{shards}"
    chunks = f" x{candidate.chunks_per_stage}" if candidate.chunks_per_stage > 1 else ""
    return f"{candidate.num_stages} stages {replicas}{shards}, {candidate.schedule}{chunks}"


def _smallest_that_fits(model: ModelProfile, cluster: Cluster, candidate: Candidate, batch_rows: int) -> Prediction:
    """Predict the candidate, with the cheapest remedy if it is too large; if none helps, in its smallest form."""
    prediction = None
    for remedied in remedies(candidate):
        prediction = predict(model, cluster, remedied, batch_rows=batch_rows)
        if not prediction.refused:
            break
    assert prediction is not None
    return prediction


def _rank(prediction: Prediction) -> tuple[float, ...]:
    """Seconds to six digits, since the same sum in another order may differ in the last; then simplicity."""
    return (float(f"{prediction.seconds:.6g}"), *_simplicity(prediction))


def _simplicity(prediction: Prediction) -> tuple[float, ...]:
    chosen = prediction.candidate
    return (chosen.num_ranks, chosen.shards, chosen.num_stages, chosen.micro_batches, chosen.schedule != "1f1b", chosen.chunks_per_stage)


def _best_first(ranked: Sequence[Prediction]) -> list[Prediction]:
    """Move the simplest of the layouts that are nearly as fast as the fastest to the front."""
    alike = [each for each in ranked if each.seconds <= (1 + NEGLIGIBLE) * ranked[0].seconds < math.inf]
    best = min(alike, key=_simplicity, default=None)
    return list(ranked) if best is None else [best, *(each for each in ranked if each is not best)]


def _reason(prediction: Prediction, ranked: Sequence[Prediction]) -> str:
    """The reason for a layout's place in the table."""
    if prediction.refused:
        return prediction.refused
    best = ranked[0]
    remedy = _remedy(prediction.candidate)
    if prediction is best:
        return _why_best(prediction, ranked) + remedy
    slower = prediction.seconds / best.seconds - 1 if best.seconds else 0.0
    head = "as fast as the best" if slower < NEGLIGIBLE else f"{slower:.0%} slower than the best"
    return f"{head}: {_where_time_goes(prediction)}{remedy}"


def _why_best(best: Prediction, ranked: Sequence[Prediction]) -> str:
    chosen = best.candidate
    if chosen.num_ranks == 1:
        return "one rank wins: more ranks would spend what they add on sums and waits"
    if chosen.num_stages == chosen.shards == 1:
        return f"plain data parallelism wins: no rank waits for another, and sums take {_share(best.sum_s, best)} of the step"
    what = " and ".join([*(["stages"] * (chosen.num_stages > 1)), *(["shards"] * (chosen.shards > 1))])
    plain = [each for each in ranked if each.candidate.num_stages == each.candidate.shards == 1 and each.candidate.num_ranks > 1]
    usable = [each for each in plain if not each.refused]
    if not plain or not usable:
        why = plain[0].refused if plain else "has less than one row per rank"
        return f"{what} win: plain data parallelism {why}; {_where_time_goes(best)}"
    other = min(usable, key=lambda each: each.seconds)
    return (f"{what} win: plain data parallelism is {other.seconds / best.seconds - 1:.0%} slower, as sums take "
            f"{_share(other.sum_s, other)} of its step; {_where_time_goes(best)}")


def _where_time_goes(prediction: Prediction) -> str:
    idle = f"ranks idle {prediction.idle:.0%} of the passes" if prediction.candidate.num_stages > 1 else "no stage waits"
    return f"{idle}, sums take {_share(prediction.sum_s, prediction)} of the step"


def _remedy(candidate: Candidate) -> str:
    done = [text for text, is_so in (("activations are computed twice", candidate.recompute != "never"),
                                     ("the optimizer's state is sharded", candidate.shard_optimizer)) if is_so]
    return f"; to fit, {' and '.join(done)}" if done else ""


def _share(seconds: float, prediction: Prediction) -> str:
    return f"{seconds / prediction.seconds:.0%}" if prediction.seconds and math.isfinite(prediction.seconds) else "0%"
