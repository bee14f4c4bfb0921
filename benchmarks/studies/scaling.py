"""The study ``scaling``: how much faster more ranks are, measured, planned and published, and how long a published model takes.

    measured     seconds of a step of an encoder on 1, 2 and 4 ranks of this machine, each rank with as many rows (benchmarks/step.py)
    published    BERT-large on 1 to 8 K80s, and the steps that its training took
    planned      BERT-large on K80s and on H100s, by the planner's arithmetic (benchmarks/paper.py); no such machine was used
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.paper import BERT_MINUTES, bert, efficiency, fit
from benchmarks.step import LENGTH, Case, by_sparkring, make
from benchmarks.studies.charts import Axis, Drawing, Line, lines
from benchmarks.studies.markdown import points, prose, table
from benchmarks.studies.study import Numbers, Study
from benchmarks.support.paper_systems import Layer, bert_large, network
from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.planner.cost_model import ModelProfile
from sparkring.pipelines.parallel.planner.enumerate import Candidate
from sparkring.pipelines.parallel.planner.paper import BACKWARD, Assumptions, device, link_bytes_s
from sparkring.pipelines.parallel.planner.planner import Plan, describe, plan
from sparkring.pipelines.parallel.planner.prediction import predict
from sparkring.spark_jobs.reporting.charts.palette import BASE_RATE
from sparkring.spark_jobs.reporting.facts.words import several

WORLD, ROWS_A_RANK = 512, 32
"""Most planned ranks; rows of each where the batch grows with the ranks."""
STEPS, BATCH, TOKENS, WIDTH = 1_000_000, 256, 512, 1024
"""Training of BERT-large: steps, sequences of a step, tokens of a sequence; width of its layers. Source: Devlin et al. 2019,
arXiv:1810.04805, appendix A.2."""
PUBLISHED_DAYS, PUBLISHED_ON = 4, "64 TPU chips"
DAY_S = 86_400
H100 = Assumptions(device=device("H100"), link_bytes_s=link_bytes_s("400Gb"), ranks_per_host=8, inside_bytes_s=450e9,
                   more=("NVLink carries 450 GB/s each way (H100 data sheet, 2022)",
                         "activations and the optimizer's state fit: their memory is left out"))


def measure(*, ranks: Sequence[int], rounds: int, rows: int, steps: int) -> Numbers:
    """Time steps of so many rows a rank, on all numbers of ranks in turn; and plan for other machines."""
    case = Case("scaling", "encoder", rows=rows, steps=steps)
    timed = [{count: _slowest(count, case) for count in ranks} for _ in range(rounds)]
    seconds = {count: statistics.median(each[count] for each in timed) for count in ranks}
    k80 = bert()
    assumed = k80.with_constant(k80.assumed, fit(k80))
    return {
        "cores": len(os.sched_getaffinity(0)), "rows": case.rows, "tokens": LENGTH, "step_s": seconds, "operations": operations(case),
        "k80": {"minutes": BERT_MINUTES, "planned": {count: efficiency(k80, assumed, "BERT-large", count) for count in BERT_MINUTES},
                "fitted": max(BERT_MINUTES)},
        "bert": {"steps": STEPS, "sequences": BATCH, "tokens": TOKENS, "operations": _bert_operations(),
                 "days": PUBLISHED_DAYS, "on": PUBLISHED_ON},
        "h100": {"world": WORLD, "assumed": H100.lines(), "rows_a_rank": ROWS_A_RANK, "growing": _growing(), "fixed": _fixed()}}


def _slowest(count: int, case: Case) -> float:
    """Seconds of a step of a ring, which is as fast as its slowest rank."""
    seconds: float = max(each for each, _ in run_on_ranks(count, by_sparkring, case, cycle_ms=None, deadline_s=600))
    print(f"{count} ranks: {seconds:.3f} s", flush=True)
    return seconds


def operations(case: Case) -> int:
    """Floating-point operations of a rank's step: matrix products of both passes, counted without computing them."""
    with torch.device("meta"):
        model, loss_sum = make(case)
        with FlopCounterMode(display=False) as counter:
            loss_sum(model).backward()
    return int(counter.get_total_flops())


def _layers() -> list[Layer]:
    """BERT-large by sequences: multiplications of a forward pass with those of attention, 2 x tokens x width for each token."""
    return [(name, (work + (2 * TOKENS * WIDTH if name.startswith("layer") else 0)) * TOKENS, parameters)
            for name, work, parameters in bert_large()]


def _bert_operations() -> float:
    """Floating-point operations of a step of BERT-large's training: two a multiplication."""
    return 2 * (1 + BACKWARD) * BATCH * sum(work for _, work, _ in _layers())


def _profile() -> ModelProfile:
    """BERT-large on an H100; what crosses a border between stages is a vector for each token, in 32 bits."""
    layers = _layers()
    rows_per_s = H100.device.flops * H100.utilization / (2 * (1 + BACKWARD) * sum(work for _, work, _ in layers))
    free = network(layers, rows_per_s=rows_per_s)
    return replace(free, blocks=tuple(replace(block, border_bytes=4.0 * TOKENS * WIDTH) for block in free.blocks))


def _growing() -> dict[int, float]:
    """Efficiency of data parallelism with as many rows on each rank, by ranks."""
    one = _plain_s(1, ROWS_A_RANK)
    return {count: one / _plain_s(count, count * ROWS_A_RANK) for count in _ring_sizes()}


def _fixed() -> list[dict[str, Any]]:
    """Seconds of a step with the published batch: by data parallelism, and by the best layout."""
    best: dict[int, Plan] = {}
    for each in plan(_profile(), H100.cluster(), world=WORLD, batch_rows=BATCH):
        if math.isfinite(each.seconds):
            best.setdefault(each.candidate.num_ranks, each)
    return [{"ranks": count, "plain_s": _plain_s(count, BATCH), "best_s": best[count].seconds, "layout": describe(best[count].candidate)}
            for count in _ring_sizes() if count in best]


def _plain_s(count: int, rows: int) -> float:
    return predict(_profile(), H100.cluster(), Candidate(replicas=(count,), micro_batches=count), batch_rows=rows).seconds


def _ring_sizes() -> list[int]:
    return [2 ** power for power in range(WORLD.bit_length())]


def page(numbers: Numbers) -> list[str | Drawing]:
    """The page."""
    return [
        prose("How much faster are more ranks, and how long does a published model take? This page has numbers of three kinds, which must",
              "not be mixed up:"),
        points("**measured** on this machine, on that day;", "**published** by others, on theirs;",
               "**planned** by the arithmetic of [`sparkring plan`](../how-to/plan.md), from published figures of devices on which nothing "
               "has run."),
        *_efficiency(numbers), *_time_to_train(numbers)]


def _efficiency(numbers: Numbers) -> list[str | Drawing]:
    step_s = {int(count): seconds for count, seconds in numbers["step_s"].items()}
    measured = {count: step_s[1] / seconds for count, seconds in step_s.items()}
    k80, growing = numbers["k80"], {int(count): value for count, value in numbers["h100"]["growing"].items()}
    minutes = {int(count): value for count, value in k80["minutes"].items()}
    published = {count: minutes[1] / (count * value) for count, value in minutes.items()}
    planned = {int(count): value for count, value in k80["planned"].items()}
    counts = sorted({*measured, *published, *growing})
    most = max(measured)

    def of(values: Mapping[int, float], count: int) -> str:
        return f"{values[count]:.3f}" if count in values else ""

    return [
        "## Efficiency",
        prose("The efficiency of n ranks is their rows a second over n times those of one. The batch grows with the ranks: each rank has",
              f"as many rows. Measured is an encoder with {several(numbers['rows'], 'row')} of {numbers['tokens']} tokens on each rank,",
              "one thread a rank. Published are the minutes of BERT-large on K80s, as lectures on distributed training print them. Planned",
              f"is BERT-large, on H100s with {numbers['h100']['rows_a_rank']} sequences each."),
        lines("efficiency", "Efficiency against ranks: measured here, published and planned", [
            Line(label="in proportion", x=counts, y=[1.0] * len(counts), style="dotted", marks=False, shade=BASE_RATE),
            Line(label="measured, this machine", x=list(measured), y=list(measured.values())),
            Line(label="published, K80", x=list(published), y=list(published.values())),
            Line(label="planned, K80", x=list(planned), y=list(planned.values()), style="dashed"),
            Line(label="planned, H100", x=list(growing), y=list(growing.values()), style="dashed")],
            x=Axis(title="ranks", log=2, ticks=counts), y=Axis(title="efficiency", limits=(0, 1.05))),
        table([{"ranks": count, "measured, s a step": of(step_s, count), "measured": of(measured, count),
                "published, K80, minutes": minutes.get(count, ""), "published, K80": of(published, count),
                "planned, K80": of(planned, count), "planned, H100": of(growing, count)} for count in counts]),
        prose(f"This machine has {numbers['cores']} cores. {most} ranks on it have an efficiency of {measured[most]:.2f}; more than",
              f"{min(1.0, numbers['cores'] / most):.2f} is not possible, since ranks share the cores once there are more of them, and the",
              "memory in any case."),
        prose(f"Of the K80s one constant is fitted, to the published value of {k80['fitted']}; the others are predictions",
              "([sources](../../benchmarks/support/paper_systems.py))."),
        prose("The plan for H100s assumes:"), points(*numbers["h100"]["assumed"])]


def _time_to_train(numbers: Numbers) -> list[str | Drawing]:
    trained, fixed = numbers["bert"], numbers["h100"]["fixed"]
    step_s = {int(count): seconds for count, seconds in numbers["step_s"].items()}
    speed = {count: count * numbers["operations"] / seconds for count, seconds in step_s.items()}
    best = max(speed, key=speed.__getitem__)
    here_days = trained["steps"] * trained["operations"] / speed[best] / DAY_S
    days = {each["ranks"]: trained["steps"] * each["best_s"] / DAY_S for each in fixed}
    plain = {each["ranks"]: trained["steps"] * each["plain_s"] / DAY_S for each in fixed}
    first, last = min(days), max(days)
    return [
        "## Time to train BERT-large",
        prose(f"BERT-large was trained for {trained['steps']:,} steps of {trained['sequences']} sequences of {trained['tokens']} tokens",
              "([Devlin and others 2019](https://arxiv.org/abs/1810.04805), appendix A.2). Its matrix products are",
              f"{trained['operations'] / 1e12:.0f} trillion operations a step, if every sequence has its full length."),
        points(
            f"**Published**: {trained['days']} days on {trained['on']}, with sequences of 128 tokens in nine steps of ten.",
            f"**Measured**: in the encoder's step, {several(best, 'rank')} of this machine reached {speed[best] / 1e9:.1f} billion "
            f"operations a second. At this speed the training takes {here_days:,.0f} days, {here_days / 365:,.0f} years.",
            f"**Planned**: {days[first]:.0f} days on {_devices(first)}, and {days[last]:.1f} days on {_devices(last)}, in 32 bits and "
            "without tensor cores."),
        lines("days", "Planned days to train BERT-large against the number of H100s", [
            Line(label="in proportion", x=list(days), y=[days[first] * first / count for count in days], style="dotted", marks=False,
                 shade=BASE_RATE),
            Line(label="best layout", x=list(days), y=list(days.values())),
            Line(label="data parallelism alone", x=list(plain), y=list(plain.values()), style="dashed")],
            x=Axis(title="H100s", log=2, ticks=list(days)), y=Axis(title="days", log=10)),
        table([{"H100s, planned": each["ranks"], "s a step": f"{each['best_s']:.3f}", "days": f"{days[each['ranks']]:.1f}",
                "best layout": each["layout"], "days, data parallelism alone": f"{plain[each['ranks']]:.1f}"} for each in fixed]),
        _shortest(plain, trained), _too_many(fixed, trained, numbers["h100"]["world"])]


def _shortest(plain: Mapping[int, float], trained: Mapping[str, Any]) -> str:
    count = min(plain, key=plain.__getitem__)
    return prose(f"The batch stays at {trained['sequences']} sequences, so each device has fewer of them the more there are. Data",
                 f"parallelism alone is fastest on {_devices(count)}; with more, one ring over all of them spends the step on its latency.",
                 "Stages have shorter rings.")


def _too_many(fixed: Sequence[Mapping[str, Any]], trained: Mapping[str, Any], world: int) -> str:
    last = max(each["ranks"] for each in fixed)
    if last == world:
        return prose(f"More than {world} were not planned for.")
    return prose(f"No layout puts {trained['sequences']} sequences on {world} devices: some would have none. So this table ends at {last};",
                 "more devices need a larger batch, and that has [limits of its own](large-batches.md).")


def _devices(count: int) -> str:
    return "one H100" if count == 1 else f"{count} H100s"


STUDY = Study(name="scaling", title="Scaling, and time to train", measure=measure, page=page,
              whole={"ranks": (1, 2, 4), "rounds": 3, "rows": 16, "steps": 8}, quick={"ranks": (1, 2), "rounds": 1, "rows": 1, "steps": 1})
