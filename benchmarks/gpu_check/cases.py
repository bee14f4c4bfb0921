"""The networks of the check and their settings, as overrides of shipped configs. Data alone.

The networks of the shipped configs are there, in their sizes and with dropout, whose masks must be the same on every device; and of the
catalogue LeNet-5 and the inception network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "float64", "bf16"]
WHOLE: tuple[Precision, ...] = ("float64", "float32")
"""The precisions in which device and CPU must agree."""
LANES = 24

# Plain SGD follows the gradient; Adam would follow the noise of gradients that are nearly 0.
_COMPARED = ("train.epochs=1", f"train.lanes={LANES}", "train.seed=1", "train.checkpoint_steps=1000000", "train.optimizer.name=sgd",
             "train.optimizer.lr=0.05", "train.optimizer.momentum=0.9", "train.optimizer.weight_decay=0",
             "train.optimizer.schedule=constant", "train.optimizer.warmup_steps=0", "model.dropout=0.1")
_NO_WIDTHS = "model.widths=[32, 64, 128]"
"""The default, as a network that has no such option wants it."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The ranks of a run and how they train together. All of them share the device."""

    name: str
    num_ranks: int = 1
    precisions: tuple[Precision, ...]
    """Of its runs on the device."""
    settings: tuple[str, ...] = ()


ONE_RANK = Layout(name="one rank", precisions=(*WHOLE, "bf16"))
TWO_STAGES = Layout(name="two stages", num_ranks=2, precisions=WHOLE, settings=("train.parallel.replicas=[1, 1]",))
# Both are equal to exact training as they are set here, so their runs are compared with one rank's.
LOCAL_SGD = Layout(name="local SGD", precisions=("float64",), settings=('train.strategy={"kind": "local_sgd", "every_steps": 1}',))
SERVED = Layout(name="a worker and a server", num_ranks=2, precisions=("float64",),
                settings=('train.strategy={"kind": "stale_sync", "bound": 0, "servers": 1}',))


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that is trained on the device and on the CPU, in settings that can be compared."""

    name: str
    config: str
    """The shipped config that it comes from."""
    data: str
    """Folder of its dataset in the kit."""
    settings: tuple[str, ...]
    layouts: tuple[Layout, ...] = (ONE_RANK, TWO_STAGES)

    def overrides(self, precision: Precision, layout: Layout = ONE_RANK) -> list[str]:
        """Overrides of its config for one run."""
        return [f"train.num_ranks={layout.num_ranks}", *_COMPARED, *self.settings, f"train.precision={precision}", *layout.settings]


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
    Network(name="tabular", config="base/flights", data="flights", settings=("train.batch_rows=4096",),
            layouts=(ONE_RANK, TWO_STAGES, LOCAL_SGD, SERVED)),
    Network(name="image", config="base/fashion-mnist", data="images", settings=("train.batch_rows=128",)),
    Network(name="image, batch norm", config="base/fashion-mnist", data="images",
            settings=("train.batch_rows=128", "model.norm=batch", "train.parallel.micro_batches=8")),
    Network(name="LeNet-5", config="base/fashion-mnist", data="images",
            settings=("train.batch_rows=128", "model.network=lenet5", _NO_WIDTHS, "model.dropout=0")),
    Network(name="inception", config="base/fashion-mnist", data="images",
            settings=("train.batch_rows=128", "model.network=inception", _NO_WIDTHS, "train.parallel.micro_batches=8")),
    # Two stages would sum the gradient of the tied matrix over two ranks on one GPU, which NCCL refuses.
    Network(name="text", config="base/python-text", data="text", settings=("train.batch_rows=32",), layouts=(ONE_RANK,)),
    Network(name="text, untied", config="base/python-text", data="text", settings=("train.batch_rows=32", "model.tied=false"),
            layouts=(TWO_STAGES,)),
)
SPEED = (
    SpeedCase(name="tabular", config="base/flights", data="flights", settings=("train.epochs=4",)),
    SpeedCase(name="image", config="base/fashion-mnist", data="images", settings=("train.epochs=8",)),
    SpeedCase(name="text", config="base/python-text", data="text", settings=("train.epochs=8",)),
    SpeedCase(name="text, 85 M parameters, bf16", config="base/python-text", data="text",
              settings=("train.epochs=4", "train.precision=bf16", "model.width=768", "model.layers=12", "model.heads=12"),
              on_cpu=("train.epochs=1", "model.width=64", "model.layers=2", "model.heads=4")),
)
