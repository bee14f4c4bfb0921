"""Systems that were published, predicted on paper by the planner's own model: efficiency beside what was measured there.

    uv run python -m benchmarks.paper

Nothing runs but arithmetic. Of each system one constant is fitted, to one of its measurements; all others are predicted, and their worst
error is ``worst_efficiency_error`` (the fitted ones, which come out by themselves, are not in it). Efficiency is the rows a
second of n devices over n times those of one, with as many rows a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.support.paper_systems import Published, bert_large, inception_v3, network, resnet101, vgg16
from benchmarks.support.report import print_result
from sparkring.pipelines.parallel.planner.cost_model import ModelProfile
from sparkring.pipelines.parallel.planner.enumerate import Candidate
from sparkring.pipelines.parallel.planner.paper import Assumptions, device, link_bytes_s
from sparkring.pipelines.parallel.planner.prediction import predict

BERT_MINUTES = {1: 399, 2: 214, 4: 118, 8: 61}
RESNET_101_ROWS_S = 2 / (1 / 219 + 1 / 91.8)
"""Half-way between the times of ResNet-50 (219 images a second) and of ResNet-152 (91.8), as its operations are: 3.8, 7.6, 11.3 billion."""
BERT_TOKENS = 1024
"""Of a step and device."""


@dataclass(frozen=True, kw_only=True)
class System:
    """Machines, networks, and what was measured."""

    name: str
    assumed: Assumptions
    rows: int
    """A device and step."""
    networks: Mapping[str, ModelProfile]
    published: Sequence[Published]
    fitted: str
    """What the one fitted constant is."""
    with_constant: Callable[[Assumptions, float], Assumptions]
    between: tuple[float, float]
    """Where the constant is looked for; efficiency falls from the first to the second."""


def efficiency(system: System, assumed: Assumptions, name: str, devices: int) -> float:
    """Predicted: seconds of one device over seconds of n, each with its rows."""
    model, cluster = system.networks[name], assumed.cluster()
    one, all_of_them = (predict(model, cluster, Candidate(replicas=(count,), micro_batches=count), batch_rows=count * system.rows).seconds
                        for count in (1, devices))
    return one / all_of_them


def fit(system: System) -> float:
    """The constant with which the fitted measurement comes out, by bisection."""
    target = next(each for each in system.published if each.fitted)
    low, high = system.between
    for _ in range(60):
        middle = (low * high) ** 0.5
        if efficiency(system, system.with_constant(system.assumed, middle), target.network, target.devices) > target.efficiency:
            low = middle
        else:
            high = middle
    return low


def horovod() -> System:
    """512 GPUs on 25 Gbit/s; the constant is the latency of one step of the ring."""
    assumed = Assumptions(device=device("P100"), link_bytes_s=link_bytes_s("25Gb"), ranks_per_host=4, bucket_bytes=64e6, more=(
        "seconds of one GPU are those that TensorFlow's performance page gives for a P100 and batch 64: VGG-16 154, Inception V3 142",
        "images a second; ResNet-101 half-way between ResNet-50 (219) and ResNet-152 (91.8): the Horovod page does not give its own",
        "buckets are Horovod's fusion buffer of 64 MB; a layer's gradients travel whole",
        "Inception V3 is taken as 17 equal modules"))
    return System(
        name="Horovod, P100, 25 Gbit/s RoCE", assumed=assumed, rows=64, networks={
            "VGG-16": network(vgg16(), rows_per_s=154), "ResNet-101": network(resnet101(), rows_per_s=RESNET_101_ROWS_S),
            "Inception V3": network(inception_v3(), rows_per_s=142)},
        published=(Published(network="VGG-16", devices=512, efficiency=0.68, fitted=True),
                   Published(network="VGG-16", devices=128, efficiency=0.79),
                   Published(network="ResNet-101", devices=512, efficiency=0.90),
                   Published(network="Inception V3", devices=512, efficiency=0.90)),
        fitted="seconds of latency of a step of the ring", between=(1e-7, 1e-2),
        with_constant=lambda assumed, latency_s: replace(assumed, latency_s=latency_s))


def bert(*, overlaps: bool = False) -> System:
    """Up to 8 K80s of one host; the constant is the time a byte takes between them."""
    assumed = Assumptions(device=device("K80"), link_bytes_s=link_bytes_s("25Gb"), ranks_per_host=8, overlaps=overlaps, more=(
        f"{BERT_TOKENS} tokens a GPU and step, two operations a token and parameter; the source gives neither batch nor length",
        "that sums follow the backward pass was chosen because it fits better; see bert_error_if_overlapped"))
    rows_per_s = assumed.device.flops * assumed.utilization / (2 * 3 * BERT_TOKENS * sum(work for _, work, _ in bert_large()))
    one = BERT_MINUTES[1]
    return System(
        name="BERT-large, K80, one host", assumed=assumed, rows=1, networks={"BERT-large": network(bert_large(), rows_per_s=rows_per_s)},
        published=[Published(network="BERT-large", devices=count, efficiency=one / (count * minutes), fitted=count == 8)
                   for count, minutes in BERT_MINUTES.items() if count > 1],
        fitted="seconds a byte between the GPUs of the host", between=(1e-13, 1e-6),
        with_constant=lambda assumed, byte_s: replace(assumed, inside_bytes_s=1 / byte_s))


def compare(system: System) -> tuple[list[dict[str, object]], float, float]:
    """Rows of the table, the worst error of what was not fitted, and the constant."""
    constant = fit(system)
    assumed = system.with_constant(system.assumed, constant)
    rows: list[dict[str, object]] = []
    worst = 0.0
    for each in system.published:
        predicted = efficiency(system, assumed, each.network, each.devices)
        error = predicted - each.efficiency
        worst = worst if each.fitted else max(worst, abs(error))
        rows.append({"system": system.name, "network": each.network, "devices": each.devices, "published": f"{each.efficiency:.3f}",
                     "predicted": f"{predicted:.3f}", "error": "fitted" if each.fitted else f"{error:+.3f}"})
    return rows, worst, constant


def main() -> None:
    """Predict and print."""
    rows: list[dict[str, object]] = []
    fields: dict[str, float | int | str | bool] = {}
    for name, system in (("horovod", horovod()), ("bert", bert())):
        of_system, worst, constant = compare(system)
        rows += of_system
        print(f"{system.name}: assumed that")
        for line in system.with_constant(system.assumed, constant).lines():
            print(f"  - {line}")
        print(f"  fitted: {system.fitted}, {constant:.4g}")
        fields |= {f"{name}_efficiency_error": worst, f"{name}_constant": constant}
    fields["bert_error_if_overlapped"] = compare(bert(overlaps=True))[1]
    fields["resnet_101_efficiency_at_5gbit"] = efficiency(
        horovod(), replace(horovod().assumed, link_bytes_s=link_bytes_s("5Gb")), "ResNet-101", 512)
    fields |= {f"{name}_million_parameters": sum(parameters for _, _, parameters in layers) / 1e6
               for name, layers in (("vgg_16", vgg16()), ("resnet_101", resnet101()), ("bert_large", bert_large()))}
    print_result(rows, {"worst_efficiency_error": max(float(fields["horovod_efficiency_error"]), float(fields["bert_efficiency_error"])),
                        "cases": sum(1 for row in rows if row["error"] != "fitted"), **fields})


if __name__ == "__main__":
    main()
