"""What blocks hold and do, counted without memory and timed for real, on a network that can be counted by hand."""

from __future__ import annotations

import pytest
import torch

from sparkring.conf.schema import Config, OptimizerConfig
from sparkring.models.build import Shapes, list_blocks
from sparkring.pipelines.training.profiling.block_counts import META, BlockCount, count_blocks, random_inputs
from sparkring.pipelines.training.profiling.block_times import REPETITIONS, TimedModel, time_blocks
from tests.support.configs import MINIMAL

F32 = 4
TABLE = Shapes(num_numeric=3)


def counted(model: dict[str, object], shapes: Shapes) -> list[BlockCount]:
    config = Config.model_validate(MINIMAL | {"model": model, "train": {"parallel": {"micro_batches": 2}}})
    return count_blocks(list_blocks(config.model, shapes), lambda rows: random_inputs(config, shapes, rows, META), dtype=torch.float32)


def test_a_network_for_tables_is_counted_as_by_hand() -> None:
    # x (3) -> 3 x 4 + 4, ReLU -> 4 x 1 + 1
    _, hidden, logits = counted({"kind": "tabular", "hidden": [4]}, TABLE)
    assert (hidden.parameter_bytes, hidden.forward_flops, hidden.border_bytes) == (16 * F32, 2 * 3 * 4, 4 * F32)
    assert hidden.activation_bytes == (3 + 4) * F32  # what is multiplied, and where ReLU let through
    assert (logits.parameter_bytes, logits.forward_flops, logits.border_bytes) == (5 * F32, 2 * 4, F32)
    assert logits.activation_bytes == 0  # its input is ReLU's output, which is kept already


@pytest.mark.parametrize("tied", [True, False])
def test_a_part_in_two_blocks_is_counted_as_shared(*, tied: bool) -> None:
    embedding, block, head = counted({"kind": "text", "width": 8, "layers": 1, "heads": 2, "tied": tied}, Shapes(length=5, vocabulary=11))
    table, positions, norm = 11 * 8 * F32, 5 * 8 * F32, 2 * 8 * F32
    assert embedding.shared_bytes == head.shared_bytes == ({"token_embedding": table} if tied else {})
    assert (embedding.parameter_bytes, head.parameter_bytes) == ((positions, norm) if tied else (table + positions, norm + table))
    assert head.forward_flops == 2 * 5 * 8 * 11
    assert block.forward_flops >= 2 * 5 * 12 * 8 * 8  # the matrices; attention's scores come on top
    assert block.border_bytes == 5 * 8 * F32


def test_images_are_counted_too() -> None:
    counts = counted({"kind": "image", "widths": [4, 8]}, Shapes(image=(1, 8, 8), num_outputs=3))
    assert sum(count.forward_flops for count in counts) > 2 * 9 * 4 * 8 * 8
    assert all(count.border_bytes > 0 for count in counts)


@pytest.mark.parametrize(("model", "shapes"), [
    ({"kind": "image", "widths": [4, 8], "norm": "batch", "dropout": 0.1}, Shapes(image=(1, 8, 8), num_outputs=3)),
    ({"kind": "text", "width": 8, "layers": 1, "heads": 2, "dropout": 0.1}, Shapes(length=5, vocabulary=11)),
    ({"kind": "tabular", "hidden": [4], "dropout": 0.1}, TABLE),
], ids=["images", "text", "tables"])
def test_dropout_and_statistics_of_micro_batches_hinder_neither_counting_nor_timing(model: dict[str, object], shapes: Shapes) -> None:
    config = Config.model_validate(MINIMAL | {"model": model, "train": {"parallel": {"micro_batches": 2}}})
    blocks = list_blocks(config.model, shapes)
    counts = count_blocks(blocks, lambda rows: random_inputs(config, shapes, rows, META), dtype=torch.float32)
    plain = counted({**model, "norm": "group", "dropout": 0.0} if "norm" in model else {**model, "dropout": 0.0}, shapes)
    assert [count.forward_flops for count in counts] == [count.forward_flops for count in plain]
    subject = TimedModel(blocks=blocks, inputs=lambda rows: random_inputs(config, shapes, rows, torch.device("cpu")), row_counts=(1, 4),
                      optimizer=OptimizerConfig(), dtype=torch.float32)
    assert len(time_blocks(subject, torch.Tensor.sum)) == len(blocks)


def test_every_block_is_timed_at_every_number_of_rows() -> None:
    config = Config.model_validate(MINIMAL | {"model": {"kind": "tabular", "hidden": [4]}})
    blocks = list_blocks(config.model, TABLE)
    subject = TimedModel(blocks=blocks, inputs=lambda rows: random_inputs(config, TABLE, rows, torch.device("cpu")), row_counts=(2, 8),
                      optimizer=OptimizerConfig(), dtype=torch.float32)
    found = time_blocks(subject, torch.Tensor.sum)
    assert len(found) == len(blocks) == 3
    for seconds in found:
        for measured in (seconds["forward"], seconds["backward"], seconds["input"], seconds["weight"]):
            assert [rows for rows, _ in measured] == [2, 8]
            assert all(len(repeated) == REPETITIONS and min(repeated) > 0 for _, repeated in measured)
