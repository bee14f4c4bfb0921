"""Machines on paper: published figures of devices and links, and a cluster made of them. Pure.

    cluster_on_paper(device("K80"), link="25Gb", ranks_per_host=4)

Published figures are peaks; ``UTILIZATION`` is the part of them that a training pass is assumed to reach. ``Assumptions.lines()``
lists everything that is assumed, to be printed with every prediction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkring.errors import ConfigError, nearest
from sparkring.pipelines.parallel.planner.cost_model import Cluster, Hop, Line, LinkCosts, SumCost

UTILIZATION = 0.35
"""Part of a device's peak that training passes of large layers reach."""
BACKWARD = 2.0
"""Floating-point operations of a backward pass per operation of the forward pass."""
INSIDE_BYTES_S = 10e9
"""Bytes a second between devices of one host: 16 lanes of PCIe 3.0, of whose 15.75 GB/s copies reach about 10."""
LATENCY_S = 30e-6
"""Latency of one step of a ring, and of a hop."""
RESERVED = 0.1
"""Part of a device's memory that its driver, the allocator's gaps and libraries' workspaces take."""
_LINK = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG])(b|B)(?:it)?(?:/s|ps)?", re.ASCII)
_SCALES = {"k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device by its published figures."""

    name: str
    flops: float
    """Peak floating-point operations a second, in 32 bits without tensor cores."""
    memory_bytes: float
    source: str


DEVICES: Mapping[str, Device] = {each.name: each for each in (
    Device(name="K80", flops=4.37e12, memory_bytes=12e9, source="Tesla K80 board specification BD-07317-001, 2015: 8.74 TFLOPS, 2 x 12 GB "
                                                               "a board of two; one of them"),
    Device(name="P100", flops=10.6e12, memory_bytes=16e9, source="Tesla P100 data sheet, 2016, NVLink"),
    Device(name="V100", flops=15.7e12, memory_bytes=16e9, source="Tesla V100 data sheet, 2017, NVLink"),
    Device(name="T4", flops=8.1e12, memory_bytes=16e9, source="Tesla T4 data sheet, 2018"),
    Device(name="A100", flops=19.5e12, memory_bytes=40e9, source="A100 data sheet, 2020, 40 GB"),
    Device(name="H100", flops=67e12, memory_bytes=80e9, source="H100 data sheet, 2022, SXM"),
)}


def device(name: str) -> Device:
    """A device by name.

    Raises:
        ConfigError: its figures are not known.
    """
    found = DEVICES.get(name.upper())
    if found is None:
        raise ConfigError(f"the figures of device {name!r} are not known{nearest(name.upper(), DEVICES)}; "
                          f"take one of {', '.join(DEVICES)}.")
    return found


def link_bytes_s(text: str) -> float:
    """The bytes per second of ``25Gb`` (bits) or ``3GB`` (bytes).

    Raises:
        ConfigError: the text has another form, or the speed is 0.
    """
    match = _LINK.fullmatch(text.strip())
    speed = float(match.group(1)) * _SCALES[match.group(2)] / (8 if match.group(3) == "b" else 1) if match else 0.0
    if not speed:
        raise ConfigError(f"a link of {text!r}; give bits or bytes per second, e.g. 25Gb or 3GB.")
    return speed


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Everything that is assumed about machines on paper."""

    device: Device
    link_bytes_s: float
    """Bytes a second between hosts; each host has one link."""
    ranks_per_host: int = 4
    inside_bytes_s: float = INSIDE_BYTES_S
    latency_s: float = LATENCY_S
    utilization: float = UTILIZATION
    overlaps: bool = True
    """Whether gradients are summed during the backward pass."""
    bucket_bytes: float = 25e6
    more: tuple[str, ...] = field(default=())
    """Further assumptions of the caller, in words."""

    def pass_line(self, forward_flops: float, *, backward: bool = False) -> Line:
        """Seconds of a pass by rows, from the operations of one row's forward pass."""
        return Line(0.0, forward_flops * (BACKWARD if backward else 1.0) / (self.device.flops * self.utilization))

    def cluster(self) -> Cluster:
        """The machines."""
        inside, between = Line(self.latency_s, 1 / self.inside_bytes_s), Line(self.latency_s, 1 / self.link_bytes_s)
        links = LinkCosts(sum_local=SumCost(step=inside), sum_between=SumCost(step=between), by_host=False, overlaps=self.overlaps,
                      bucket_bytes=self.bucket_bytes, hop_local={"sidecar": Hop(inside)}, hop_between={"sidecar": Hop(between)})
        return Cluster(links=links, ranks_per_host=self.ranks_per_host, process_bytes=RESERVED * self.device.memory_bytes,
                       memory_bytes=self.device.memory_bytes)

    def lines(self) -> list[str]:
        """The assumptions, one per line."""
        when = "during the backward pass" if self.overlaps else "after the backward pass"
        device = self.device
        return [
            f"a rank is one {device.name} of {device.flops / 1e12:.3g} TFLOPS, of which {self.utilization:.0%} is reached",
            f"it has {device.memory_bytes / 1e9:.3g} GB, of which {RESERVED:.0%} is not for the model ({device.source})",
            f"{self.ranks_per_host} ranks a host, joined by {self.inside_bytes_s / 1e9:.3g} GB/s",
            f"one link of {self.link_bytes_s * 8 / 1e9:.3g} Gbit/s a host, and {self.latency_s * 1e6:.3g} us a step of a ring",
            f"a backward pass takes {BACKWARD:g} times its forward pass",
            f"gradients are summed in buckets of {self.bucket_bytes / 1e6:.3g} MB by one ring over all replicas, {when}",
            *self.more]
