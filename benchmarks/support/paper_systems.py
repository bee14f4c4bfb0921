"""Published systems as the planner sees them: networks by their layers, machines by their data sheets, and what was measured there.

    Horovod    docs/benchmarks.rst of Horovod (128 servers of 4 Pascal GPUs, 25 Gbit/s RoCE, 64 images a GPU), and for VGG-16 at 128
               GPUs its README of 2017; seconds of one GPU from TensorFlow's performance page of 2017 (P100, synthetic data, batch 64)
    BERT       minutes of BERT-large on 1, 2, 4 and 8 K80 GPUs, as lectures on distributed training print them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparkring.pipelines.parallel.planner.cost_model import BlockProfile, Line, ModelProfile
from sparkring.pipelines.parallel.planner.paper import BACKWARD

FLOAT = 4
"""Bytes of a parameter."""
Layer = tuple[str, float, float]
"""Name, multiplications of a row's forward pass, parameters."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One measurement: the efficiency of a network on so many devices."""

    network: str
    devices: int
    efficiency: float
    fitted: bool = False
    """The system's one constant is fitted to this one."""


def network(layers: Sequence[Layer], *, rows_per_s: float) -> ModelProfile:
    """A network whose passes take what was published in all, dealt out to layers by their multiplications.

    Args:
        layers: In order.
        rows_per_s: Of training on one device.
    """
    whole = sum(work for _, work, _ in layers)

    def line(work: float, part: float) -> Line:
        return Line(0.0, work / whole * part / (1 + BACKWARD) / rows_per_s)

    return ModelProfile(blocks=tuple(BlockProfile(name=name, forward=line(work, 1.0), backward=line(work, BACKWARD),
                                                  parameter_bytes=FLOAT * parameters) for name, work, parameters in layers))


def vgg16() -> list[Layer]:
    """Source: Simonyan and Zisserman 2015, arXiv:1409.1556, table 1, column D."""
    layers: list[Layer] = []
    channels, side = 3, 224
    for width, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for number in range(repeats):
            layers.append((f"conv{width}.{number}", 9.0 * channels * width * side ** 2, 9.0 * channels * width + width))
            channels = width
        side //= 2
    for number, (wide, out) in enumerate(pairwise((512 * 7 * 7, 4096, 4096, 1000))):
        layers.append((f"full{number}", float(wide * out), float(wide * out + out)))
    return layers


def resnet101() -> list[Layer]:
    """Source: He et al. 2016, arXiv:1512.03385, table 1."""
    return list(_resnet((3, 4, 23, 3)))


def _resnet(repeats: Sequence[int]) -> Iterator[Layer]:
    yield "conv1", 49.0 * 3 * 64 * 112 ** 2, 49.0 * 3 * 64 + 128
    channels = 64
    for stage, count in enumerate(repeats):
        width, side = 64 * 2 ** stage, 56 // 2 ** stage
        for number in range(count):
            weights = float(channels * width + 9 * width ** 2 + 4 * width ** 2 + (4 * channels * width if number == 0 else 0))
            norms = 2.0 * (6 * width + (4 * width if number == 0 else 0))
            yield f"stage{stage}.{number}", weights * side ** 2, weights + norms
            channels = 4 * width
    yield "full", 2048.0 * 1000, 2048.0 * 1000 + 1000


def inception_v3() -> list[Layer]:
    """In equal parts: 23.8 million parameters. Source of the sum: Szegedy et al. 2016, arXiv:1512.00567, as in Keras's applications."""
    return [(f"module{number}", 1.0, 23.8e6 / 17) for number in range(17)]


def bert_large() -> list[Layer]:
    """Source: Devlin et al. 2019, arXiv:1810.04805, section 3: 24 layers, width 1024, 30,522 word pieces."""
    width, embedding = 1024.0, 1024.0 * (30_522 + 512 + 2)
    layer = 12 * width ** 2 + 13 * width
    return [("embedding", 0.0, embedding), *((f"layer{number}", layer, layer) for number in range(24)), ("pooler", width ** 2, width ** 2)]
