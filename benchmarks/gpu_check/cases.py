"""The networks of the check and their settings, as overrides of shipped configs. Data alone.

Every shipped network is there, in the sizes of the shipped configs and with dropout, whose masks must be the same on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "float64", "bf16"]
LANES = 24

# Plain SGD follows the gradient; Adam would follow the noise of gradients that are nearly 0.
_COMPARED = ("train.epochs=1", f"train.lanes={LANES}", "train.seed=1", "train.checkpoint_steps=1000000", "train.optimizer.name=sgd",
             "train.optimizer.lr=0.05", "train.optimizer.momentum=0.9", "train.optimizer.weight_decay=0",
             "train.optimizer.schedule=constant", "train.optimizer.warmup_steps=0", "model.dropout=0.1")
_TWO_STAGES = ("train.num_ranks=2", "train.parallel.replicas=[1, 1]")


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that is trained on the device and on the CPU, in settings that can be compared."""

    name: str
    config: str
    """The shipped config that it comes from."""
    data: str
    """Folder of its dataset in the kit."""
    settings: tuple[str, ...]
    on_one_rank: bool = True
    in_stages: bool = True

    def overrides(self, precision: Precision, *, stages: bool = False) -> list[str]:
        """Overrides of its config for one run."""
        return ["train.num_ranks=1", *_COMPARED, *self.settings, f"train.precision={precision}", *(_TWO_STAGES if stages else ())]


@dataclass(frozen=True, kw_only=True)
class SpeedCase:
    """A network whose speed is measured, with its shipped optimizer."""

    name: str
    config: str
    data: str
    settings: tuple[str, ...]
    on_cpu: tuple[str, ...] = ()
    """Further overrides where the CPU takes the device's place."""

    def overrides(self, device: str) -> list[str]:
        """Overrides of its config."""
        return ["train.num_ranks=1", f"train.lanes={LANES}", "train.keep_checkpoints=1", *self.settings,
                *(self.on_cpu if device == "cpu" else ())]


NETWORKS = (
    Network(name="tabular", config="base/flights", data="flights", settings=("train.batch_rows=4096",)),
    Network(name="image", config="base/fashion-mnist", data="images", settings=("train.batch_rows=128",)),
    Network(name="image, batch norm", config="base/fashion-mnist", data="images",
            settings=("train.batch_rows=128", "model.norm=batch", "train.parallel.micro_batches=8")),
    # Two stages would sum the gradient of the tied matrix over two ranks on one GPU, which NCCL refuses.
    Network(name="text", config="base/python-text", data="text", settings=("train.batch_rows=32",), in_stages=False),
    Network(name="text, untied", config="base/python-text", data="text", settings=("train.batch_rows=32", "model.tied=false"),
            on_one_rank=False),
)
SPEED = (
    SpeedCase(name="tabular", config="base/flights", data="flights", settings=("train.epochs=4",)),
    SpeedCase(name="image", config="base/fashion-mnist", data="images", settings=("train.epochs=8",)),
    SpeedCase(name="text", config="base/python-text", data="text", settings=("train.epochs=8",)),
    SpeedCase(name="text, 85 M parameters, bf16", config="base/python-text", data="text",
              settings=("train.epochs=4", "train.precision=bf16", "model.width=768", "model.layers=12", "model.heads=12"),
              on_cpu=("train.epochs=1", "model.width=64", "model.layers=2", "model.heads=4")),
)
