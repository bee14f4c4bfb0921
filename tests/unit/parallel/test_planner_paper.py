"""Machines on paper: links and devices by name, and what the same model says of systems that were published."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sparkring.errors import ConfigError
from sparkring.pipelines.parallel.planner.cost_model import Line
from sparkring.pipelines.parallel.planner.paper import DEVICES, Assumptions, device, link_bytes_s

ROOT = Path(__file__).resolve().parents[3]


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


def test_published_systems_come_out_within_a_twentieth_and_their_networks_have_the_published_parameters() -> None:
    ended = subprocess.run([sys.executable, "-m", "benchmarks.paper"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert [figures[f"{name}_million_parameters"] for name in ("vgg_16", "resnet_101", "bert_large")] == pytest.approx(
        [138.36, 44.55, 335], rel=1e-3)
    assert 0 < figures["worst_efficiency_error"] <= 0.05
    assert figures["resnet_101_efficiency_at_5gbit"] < 0.80  # a control: another link is far off, so the figures do not come by themselves
