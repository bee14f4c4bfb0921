"""Machines on paper: links and devices by name, and what the same model says of systems that were published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.paper import bert, compare, efficiency, horovod
from benchmarks.paper_systems import bert_large, resnet101, vgg16
from sparkring.errors import ConfigError
from sparkring.pipelines.parallel.planner.cost_model import Line
from sparkring.pipelines.parallel.planner.paper import DEVICES, Assumptions, device, link_bytes_s


def test_a_link_is_bits_or_bytes_a_second() -> None:
    assert link_bytes_s("25Gb") == link_bytes_s("25 Gbit/s") == link_bytes_s("25Gbps") == 3.125e9
    assert link_bytes_s("3GB") == 3e9
    assert link_bytes_s("1.5MB/s") == 1.5e6


@pytest.mark.parametrize("text", ["25", "Gb", "0Gb", "25 Tb", "-1Gb", "25gb", ""])
def test_another_link_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"e\.g\. 25Gb or 3GB"):
        link_bytes_s(text)


def test_an_unknown_device_is_refused_with_those_that_are_known() -> None:
    assert device("k80") is DEVICES["K80"]
    with pytest.raises(ConfigError, match=r"'K8O' are not known; did you mean 'K80'\?; take one of K80, "):
        device("K8O")


def test_a_pass_takes_its_operations_at_the_share_of_the_peak_that_is_reached() -> None:
    assumed = Assumptions(device=replace(device("K80"), flops=4e12), link_bytes_s=1e9, utilization=0.5)
    assert assumed.pass_line(1e9) == Line(0.0, 1e9 / 2e12)
    assert assumed.pass_line(1e9, backward=True) == Line(0.0, 2e9 / 2e12)
    assert "50% is reached" in assumed.lines()[0]


def test_the_published_networks_have_as_many_parameters_as_was_published() -> None:
    millions = [sum(parameters for _, _, parameters in layers) / 1e6 for layers in (vgg16(), resnet101(), bert_large())]
    assert millions == pytest.approx([138.36, 44.55, 335], rel=1e-3)


def test_efficiencies_of_published_systems_come_out_within_a_twentieth() -> None:
    for system in (horovod(), bert()):
        _, worst, _ = compare(system)
        assert 0 < worst <= 0.05, system.name
    # a control: the same system with another link is far off, so the figures are not there by themselves
    slow = replace(horovod().assumed, link_bytes_s=link_bytes_s("5Gb"))
    assert efficiency(horovod(), slow, "ResNet-101", 512) < 0.80
