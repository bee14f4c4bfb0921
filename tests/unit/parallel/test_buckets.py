"""Which gradients are summed together."""

from __future__ import annotations

from sparkring.pipelines.parallel.collectives.buckets import bucket_bytes, plan_buckets

MB = 10**6


def test_buckets_are_filled_from_the_last_parameter_to_the_first() -> None:
    #   sizes      p0 4   p1 3   p2 5   p3 2        closed at 6 elements or more
    buckets = plan_buckets([4, 3, 5, 2], bucket_elements=6)
    assert [(bucket.parameters, bucket.offsets, bucket.length) for bucket in buckets] == [((3, 2), (0, 2), 7), ((1, 0), (0, 3), 7)]


def test_a_bucket_is_closed_half_full_before_a_parameter_that_fills_one() -> None:
    #   sizes      p0 9   p1 1   p2 2               an embedding p0: p2 and p1 do not wait for it
    assert [bucket.parameters for bucket in plan_buckets([9, 1, 2], bucket_elements=6)] == [(2, 1), (0,)]
    assert [bucket.parameters for bucket in plan_buckets([9, 1, 1], bucket_elements=6)] == [(2, 1, 0)]  # few, such as a bias
    assert [bucket.parameters for bucket in plan_buckets([5, 1, 2], bucket_elements=6)] == [(2, 1, 0)]


def test_between_hosts_buckets_are_small_so_that_the_backward_pass_hides_most_of_them() -> None:
    def closed_at(gradient_bytes: int, num_hosts: int) -> float:
        return bucket_bytes(gradient_bytes, num_hosts=num_hosts, most=25 * MB)

    assert [closed_at(size * MB, 2) / MB for size in (1, 32, 4000)] == [1, 2, 25]
    assert [closed_at(size * MB, 1) / MB for size in (1, 32, 4000)] == [25, 25, 25]
    assert bucket_bytes(32 * MB, num_hosts=2, most=100) == 100
