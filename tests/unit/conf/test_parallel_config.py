"""What of ``train.parallel`` asks for more than plain data parallelism: nothing that is asked for is passed over in silence."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sparkring.conf.schema import TrainConfig
from sparkring.conf.schema.parallel import ParallelConfig
from sparkring.spark_jobs.chaos import hardened
from sparkring.spark_jobs.recovery.resize import resized


@pytest.mark.parametrize("asked", [
    {"replicas": [1, 1]}, {"shards": 2}, {"micro_batches": 4}, {"shard_optimizer": True}, {"recompute": "always"},
    {"recompute": "except_last"}, {"recompute": ["always"]}, {"cut": [2, 1]}, {"cut": ["layers.2"]}], ids=str)
def test_what_data_parallelism_alone_does_not_do_takes_the_way_of_stages(asked: dict[str, Any]) -> None:
    assert ParallelConfig.model_validate(asked).pipelined


@pytest.mark.parametrize("asked", [
    {}, {"replicas": [4]}, {"auto": True, "micro_batches": 8}], ids=str)
def test_plain_data_parallelism_does_the_rest(asked: dict[str, Any]) -> None:
    assert not ParallelConfig.model_validate(asked).pipelined


@pytest.mark.parametrize(("asked", "named"), [
    ({"schedule": "gpipe"}, "schedule=gpipe"), ({"transport": "horovod"}, "transport=horovod"),
    ({"schedule": "interleaved", "chunks_per_stage": 2}, r"schedule=interleaved and train\.parallel\.chunks_per_stage=2")])
@pytest.mark.parametrize("one_stage", [{}, {"replicas": [4]}, {"shards": 2}, {"micro_batches": 8}], ids=str)
def test_what_only_matters_between_stages_is_refused_of_one_stage(asked: dict[str, Any], named: str, one_stage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^1 .*\n.*train\.parallel\.{named} would have no effect: train\.parallel\.replicas=.* is one"):
        ParallelConfig.model_validate(one_stage | asked)
    assert ParallelConfig.model_validate({"replicas": [1, 1]} | asked), "the control"


@pytest.mark.parametrize("asked", [{"transport": "horovod"}, {"schedule": "interleaved", "chunks_per_stage": 2}], ids=str)
def test_a_ring_that_shrinks_to_one_stage_drops_what_only_matters_between_stages(asked: dict[str, Any]) -> None:
    train = TrainConfig.model_validate({"num_ranks": 2, "parallel": {"replicas": [1, 1], "micro_batches": 4} | asked})
    smaller = resized(train, 1)
    assert smaller is not None
    assert smaller.parallel == ParallelConfig(replicas=(1,), micro_batches=4)


def test_activations_are_done_again_in_all_stages_or_in_each_as_it_says() -> None:
    of_all, of_each = (ParallelConfig.model_validate({"replicas": [1, 2, 1], "recompute": recompute})
                       for recompute in ("always", ["always", "never", "except_last"]))
    assert [of_all.recompute_of(stage) for stage in range(3)] == ["always"] * 3
    assert [of_each.recompute_of(stage) for stage in range(3)] == ["always", "never", "except_last"]
    assert [each.recompute_over(3) for each in (of_all, of_each)] == [of_all.recompute, of_each.recompute]
    assert of_all.recompute_over(2) == of_each.recompute_over(2) == ("always",), "fewer stages are larger ones"
    assert ParallelConfig.model_validate({"replicas": [1, 1], "recompute": ["never", "never"]}).recompute_over(1) == ("never",)
    assert ParallelConfig.model_validate(of_each.model_dump(mode="json")) == of_each
    for wrong in (["always", "never"], [], ["often"]):
        with pytest.raises(ValueError, match="recompute"):
            ParallelConfig.model_validate({"replicas": [1, 1, 1], "recompute": wrong})


def test_a_ring_that_shrinks_to_fewer_stages_keeps_less_of_activations_not_more() -> None:
    train = TrainConfig.model_validate({"num_ranks": 3, "parallel": {
        "replicas": [1, 1, 1], "micro_batches": 4, "recompute": ["except_last", "never", "never"]}})
    smaller = resized(train, 2)
    assert smaller is not None
    assert (smaller.replicas, smaller.parallel.recompute) == ((1, 1), ("except_last",))


def test_a_copy_with_other_values_is_checked_like_a_file() -> None:
    train = TrainConfig.model_validate({"num_ranks": 2, "epochs": 9, "parallel": {"replicas": [1, 1], "micro_batches": 4}})
    assert train.changed(num_ranks=1, parallel=ParallelConfig()) == TrainConfig(num_ranks=1, epochs=9)
    for changes in ({"num_ranks": 3}, {"lanes": 2}, {"epochs": 0}, {"epoch": 3}):
        with pytest.raises(ValidationError):
            train.changed(**changes)
        assert train.model_copy(update=changes), "the control: this checks nothing"


def test_faults_on_purpose_prepare_a_training_with_checked_values() -> None:
    ready = hardened(TrainConfig(epochs=9), num_faults=5, deadline_s=10)
    assert (ready.epochs, ready.recovery.restarts, ready.recovery.leave_out_after, ready.ring.deadline_s) == (9, 6, 6, 10)
    with pytest.raises(ValidationError):
        hardened(TrainConfig(), num_faults=5, deadline_s=0)
