"""What the literature says of schedules in closed form, for equal stages without hops. The simulator is tested against these.

A bubble is the share of the step's time in which a worker computes nothing. (Some papers divide by the time of the computation
instead, and so get (p - 1) / m.)
"""

from __future__ import annotations


def pipeline_bubble(stages: int, micro_batches: int, *, chunks_per_stage: int = 1) -> float:
    """Bubble of GPipe and 1F1B, and of interleaved 1F1B where ``stages`` divides ``micro_batches``.

    Args:
        stages: p.
        micro_batches: m, a replica's.
        chunks_per_stage: v.
    Returns:
        (p - 1) / (v m + p - 1).
    Source: Huang et al. 2019, arXiv:1811.06965, section 2.3; Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    return (stages - 1) / (chunks_per_stage * micro_batches + stages - 1)


def zero_bubble_makespan(stages: int, micro_batches: int, *, forward_s: float, input_s: float, weight_s: float) -> float:
    """Seconds of ZB-H1's computation with at least as many micro-batches as stages: m (F + I + W) + (p - 1) (F + I - W).

    Args:
        stages: p.
        micro_batches: m >= p.
        forward_s: F.
        input_s: I.
        weight_s: W, at most F and at most I.
    Source: Qi et al. 2023, arXiv:2401.10241, table 2 (its B is our I).
    """
    return micro_batches * (forward_s + input_s + weight_s) + (stages - 1) * (forward_s + input_s - weight_s)


def gpipe_in_flight(micro_batches: int) -> int:
    """Micro-batches that every stage of GPipe holds at most. Source: Huang et al. 2019, arXiv:1811.06965, section 2.3."""
    return micro_batches


def one_f_one_b_in_flight(stages: int, micro_batches: int, stage: int) -> int:
    """Micro-batches that ``stage`` of 1F1B holds at most: min(m, p - s). Source: Narayanan et al. 2021, arXiv:2006.09503, section 3.2."""
    return min(micro_batches, stages - stage)


def interleaved_in_flight(stages: int, micro_batches: int, stage: int, *, chunks_per_stage: int) -> int:
    """Micro-batches of chunks that ``stage`` of interleaved 1F1B holds at most, where ``stages`` divides ``micro_batches``.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2: the warm-up, and one more.
    """
    return min(micro_batches * chunks_per_stage, (chunks_per_stage - 1) * stages + 2 * (stages - 1 - stage) + 1)
