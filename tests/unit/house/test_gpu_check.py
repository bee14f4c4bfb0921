"""The check of a GPU without one: limits that a wrong gradient exceeds, figures worked by hand, steps that go on after one that failed."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.gpu_check import cases
from benchmarks.gpu_check.__main__ import Step, _Kept, _outcomes, to_come
from benchmarks.gpu_check.cases import LOCAL_SGD, NETWORKS, ONE_RANK, SERVED, SPEED, TWO_STAGES, Network
from benchmarks.gpu_check.compare import LIMITS, Apart, distance, farthest, learned, loss_distance, moved, run_limits
from benchmarks.gpu_check.install import StepFailed, require_whole_kit
from benchmarks.gpu_check.outcome import Check, Findings, Outcome, all_passed
from benchmarks.gpu_check.report import document, page
from benchmarks.gpu_check.speed import checkpoints, rates
from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config
from sparkring.conf.schema.strategy import ExactConfig, LocalSgdConfig, StaleSyncConfig
from sparkring.models.build import Shapes, build_model, list_blocks
from sparkring.models.losses import next_token_loss_sum
from sparkring.pipelines.training.job.layout import Layout

ROOT = Path(__file__).resolve().parents[3]
SHAPES = {"tabular": Shapes(num_numeric=3, cardinalities=(4,)), "image": Shapes(image=(1, 28, 28), num_outputs=3),
          "text": Shapes(length=16, vocabulary=32)}


def config_of(network: Network, layout: cases.Layout = ONE_RANK) -> Config:
    return load_config(network.config, network.overrides("float32", layout))


def gradient(model: nn.Module, dtype: torch.dtype) -> dict[str, NDArray[Any]]:
    model = copy.deepcopy(model).to(dtype)
    tokens = torch.arange(64).remainder(29).view(4, 16)
    next_token_loss_sum(model(tokens=tokens), tokens, pad_id=31).backward()
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.fixture(scope="module")
def gradients() -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Of a shipped decoder, in float64 and in float32: two devices that differ by rounding."""
    torch.manual_seed(3)
    model = build_model(load_config("base/python-text", ["model.width=32"]).model, SHAPES["text"])
    return gradient(model, torch.float64), gradient(model, torch.float32)


def test_rounding_keeps_the_limit_even_for_a_gradient_that_is_zero_but_for_rounding(
        gradients: tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]) -> None:
    exact, rounded = gradients
    bias = "blocks.0.attention.query_key_value.bias"
    keys = slice(32, 64)  # softmax does not depend on the bias of the keys
    assert np.linalg.norm(rounded[bias][keys] - exact[bias][keys]) > 0.1 * np.linalg.norm(exact[bias][keys])
    assert 0 < distance(rounded, exact).value < LIMITS["float32"].gradient


@pytest.mark.parametrize("wrong", ["token_embedding.weight", "blocks.1.norm2.bias", "norm.weight"])
def test_a_gradient_that_is_wrong_in_one_tensor_exceeds_the_limit(
        gradients: tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]], wrong: str) -> None:
    exact, rounded = gradients
    found = distance(rounded | {wrong: rounded[wrong] * np.float32(1.05)}, exact)
    assert found.tensor == wrong
    assert found.value > LIMITS["float32"].gradient


def test_distances_worked_by_hand() -> None:
    wanted = {"large": np.array([3.0, 4.0]), "small": np.array([0.01])}
    assert distance({"large": np.array([3.0, 4.5]), "small": np.array([0.01])}, wanted) == pytest.approx((0.1, "large"))
    # |small| is below the floor, 0.01 * |5, 0.01|, which it is compared with instead.
    assert distance(wanted | {"small": np.array([0.02])}, wanted).value == pytest.approx(0.01 / (0.01 * math.hypot(5, 0.01)))
    assert distance(wanted | {"small": np.array([math.nan])}, wanted) == (math.inf, "small")
    assert distance({"zero": np.zeros(2)}, {"zero": np.zeros(2)}).value == 0.0
    assert distance({"zero": np.ones(2)}, {"zero": np.zeros(2)}).value == math.inf
    assert loss_distance([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    assert loss_distance([math.nan], [1.0]) == math.inf
    assert loss_distance([], []) == math.inf, "no loss proves nothing"
    assert learned({"a": np.array([1.5])}, {"a": np.array([1.0])}) == {"a": np.array([0.5])}


def test_a_run_in_float32_may_be_as_far_away_as_rounding_moves_its_network() -> None:
    limits = LIMITS["float32"]
    assert run_limits(limits, Apart(limits.loss / 4, limits.learned / 4)) == limits
    assert run_limits(limits, Apart(1e-3, limits.learned / 4)) == limits._replace(loss=2e-3)
    assert farthest([Apart(1e-3, 1e-4, "a"), Apart(1e-5, 1e-2, "b")]) == Apart(1e-3, 1e-2, "b")
    assert Apart(limits.loss, limits.learned).within(limits)
    assert not Apart(math.nan, 0.0).within(limits)


def test_weights_are_moved_by_at_most_one_rounding_step() -> None:
    weights = {"a": np.linspace(-3, 3, 1000, dtype=np.float32), "scalar": np.array(1.5, np.float32), "count": np.array(7)}
    found, again, other = (moved(weights, seed=seed) for seed in (1, 1, 2))
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in weights.items()}
    steps = np.abs(found["a"] - weights["a"]) / np.spacing(np.abs(weights["a"]))
    assert 0 < steps.mean() < 1
    assert steps.max() <= 2  # spacing is up to twice as fine as the step, which is relative
    assert found["count"] == 7
    assert np.array_equal(found["a"], again["a"])
    assert not np.array_equal(found["a"], other["a"])


@pytest.mark.parametrize(("found", "wanted", "message"), [
    pytest.param({"a": np.ones(1)}, {"b": np.ones(1)}, r"\['a', 'b'\] are on one side only", id="other names"),
    pytest.param({"a": np.ones(1)}, {"a": np.ones(2)}, r"\['a'\] differ in their shapes", id="other shapes"),
])
def test_runs_of_different_networks_are_not_compared(found: dict[str, Any], wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distance(found, wanted)
    with pytest.raises(ValueError, match="1 losses beside 2"):
        loss_distance([1.0], [1.0, 2.0])


def test_every_shipped_network_is_compared_and_measured_with_its_shipped_sizes() -> None:
    models = [config_of(network).model for network in NETWORKS]
    kinds = {path.stem for path in (ROOT / "conf/base").iterdir()}
    assert {network.config for network in NETWORKS} == {case.config for case in SPEED} == {f"base/{kind}" for kind in kinds}
    assert {(model.kind, model.network, getattr(model, "norm", None), getattr(model, "tied", None)) for model in models} == {
        ("tabular", None, None, None), ("image", None, "group", None), ("image", None, "batch", None), ("image", "lenet5", "group", None),
        ("image", "inception", "group", None), ("text", None, None, True), ("text", None, None, False)}
    for network in NETWORKS:
        model, shipped = config_of(network).model, load_config(network.config).model
        unlike = {name for name in type(model).model_fields if getattr(model, name) != getattr(shipped, name)}
        assert unlike <= {"dropout", "norm", "tied"} | ({"network", "widths"} if model.network else set()), network.name
    for case in SPEED:
        for device in ("cpu", "cuda"):
            assert load_config(case.config, case.overrides(device)).train.num_ranks == 1


@pytest.mark.parametrize("network", [network for network in NETWORKS if TWO_STAGES in network.layouts], ids=lambda network: network.name)
def test_two_stages_on_one_device_share_nothing_that_nccl_would_sum(network: Network) -> None:
    config = config_of(network, TWO_STAGES)
    layout = Layout.of(config.train, list_blocks(config.model, SHAPES[config.model.kind]))
    assert (layout.mesh.replicas, layout.tied, layout.transport) == ((1, 1), {}, "sidecar")


def test_tied_weights_in_two_stages_would_be_summed_by_nccl() -> None:
    """The control: the network that the check does not cut."""
    (tied,) = (network for network in NETWORKS if TWO_STAGES not in network.layouts)
    config = config_of(tied, TWO_STAGES)
    assert Layout.of(config.train, list_blocks(config.model, SHAPES["text"])).tied != {}


def test_every_strategy_is_compared_as_it_equals_exact_training() -> None:
    trained = {config_of(network, layout).train.strategy for network in NETWORKS for layout in network.layouts}
    assert trained == {ExactConfig(), LocalSgdConfig(every_steps=1), StaleSyncConfig(bound=0, servers=1)}
    assert {LOCAL_SGD, SERVED} <= {layout for network in NETWORKS for layout in network.layouts}


def step_record(epoch: int, step: int, time: float, data_s: float) -> dict[str, Any]:
    return {"event": "step", "epoch": epoch, "step": step, "time": time, "global_rows": 100, "data_s": data_s}


def test_a_rate_counts_whole_steps_after_the_warm_up_and_no_pause_between_epochs() -> None:
    warm_up = [step_record(0, step, 5.0 * step, 4.0) for step in range(10)]
    timed = [step_record(0, 10, 100.0, 9.0), step_record(0, 11, 100.5, 0.1), step_record(0, 12, 101.0, 0.1),
             step_record(1, 0, 200.0, 9.0), step_record(1, 1, 201.0, 0.3)]
    assert rates(warm_up + timed) == {"steps measured": 3, "rows/s": 150, "step ms": 666.667, "loader's share": 0.25}
    with pytest.raises(ValueError, match="a run of 1 steps after the first 10 is too short"):
        rates(warm_up + timed[:1])


def test_the_slowest_checkpoint_is_reported() -> None:
    records: list[dict[str, Any]] = [
        {"event": "checkpoint", "bytes": 2_000_000, "write_s": 0.5, "seconds": 0.01},
        {"event": "checkpoint", "bytes": 2_000_000, "write_s": 0.25, "seconds": 0.02}, {"event": "end"}]
    assert checkpoints(records) == {"checkpoints": 2, "checkpoint MB": 2.0, "checkpoint s": 0.5, "training waited s": 0.02}
    assert checkpoints([]) == {"checkpoints": 0}


def broken() -> Findings:
    raise StepFailed("no compiler\nat all")


def too_far() -> Findings:
    return Findings({"a": 1}, (Check("loss", 0.2, 0.1), Check("gradient", 0.0, 0.1)))


def names_and_ends(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.step: outcome.status for outcome in outcomes}


def test_steps_go_on_after_one_that_failed_and_say_what_they_lacked(tmp_path: Path) -> None:
    steps = [Step("kit", Findings), Step("horovod", broken, needs=("kit",)), Step("without NCCL", Findings, instead_of="horovod"),
             Step("needs either", Findings, needs=("horovod", "without NCCL")), Step("needs it", Findings, needs=("horovod",)),
             Step("too far", too_far), Step("a bug", lambda: Findings({"x": 1 // int("0")}))]
    outcomes = list(_outcomes(steps, _Kept(tmp_path, key="k"), left_s=lambda: 1.0))
    assert names_and_ends(outcomes) == {"kit": "passed", "horovod": "failed", "without NCCL": "passed", "needs either": "passed",
                                        "needs it": "not run", "too far": "failed", "a bug": "failed"}
    errors = {outcome.step: outcome.error for outcome in outcomes}
    assert errors["horovod"] == "no compiler\nat all"
    assert errors["needs it"] == "it needs the step horovod, which did not pass"
    assert errors["too far"] == "loss is 0.2, at most 0.1 is allowed"
    assert "ZeroDivisionError" in errors["a bug"]
    assert not all_passed(outcomes)


def test_a_step_that_stands_in_for_another_is_left_out_where_that_passed(tmp_path: Path) -> None:
    steps = [Step("horovod", Findings), Step("without NCCL", broken, instead_of="horovod")]
    assert names_and_ends(list(_outcomes(steps, _Kept(tmp_path, key="k"), left_s=lambda: 1.0))) == {"horovod": "passed"}


def test_a_second_call_repeats_only_what_has_not_passed(tmp_path: Path) -> None:
    ran: list[str] = []

    def noting(name: str, then: Callable[[], Findings] = Findings) -> Callable[[], Findings]:
        def run() -> Findings:
            ran.append(name)
            return then()
        return run

    steps = [Step("machine", noting("machine")), Step("good", noting("good")), Step("bad", noting("bad", too_far))]
    for key in ("one kit", "one kit", "another kit"):
        list(_outcomes(steps, _Kept(tmp_path, key=key), left_s=lambda: 1.0))
    assert ran == ["machine", "good", "bad", "machine", "bad", "machine", "good", "bad"]


def test_a_report_before_the_end_does_not_pass() -> None:
    steps = [Step("kit", Findings), Step("horovod", Findings), Step("without NCCL", Findings, instead_of="horovod"),
             Step("train", Findings)]
    done = [Outcome("kit", "passed"), Outcome("horovod", "passed")]
    assert names_and_ends(to_come(steps, done)) == {"train": "not run"}
    assert not document([*done, *to_come(steps, done)], device="cuda", date="today", seconds=1)["passed"]
    assert to_come(steps, [*done, Outcome("train", "passed")]) == []


def test_what_no_time_is_left_for_is_not_run(tmp_path: Path) -> None:
    (outcome,) = _outcomes([Step("train", Findings)], _Kept(tmp_path, key="k"), left_s=lambda: 0.0)
    assert (outcome.status, outcome.error.partition(";")[0]) == ("not run", "no time was left")


def test_a_step_that_was_cut_off_says_so_and_what_it_found(tmp_path: Path) -> None:
    left = iter((1.0, 0.0))
    (outcome,) = _outcomes([Step("train", too_far)], _Kept(tmp_path, key="k"), left_s=lambda: next(left))
    assert outcome.status == "failed"
    assert outcome.error == ("the check's time ended within this step; call the check again, which begins the step anew. "
                             "Found so far: loss is 0.2, at most 0.1 is allowed")
    assert outcome.findings.facts == {"a": 1}


def test_a_figure_that_is_no_number_does_not_hold() -> None:
    assert not Check("loss", math.nan, 1.0).holds
    assert Findings(checks=(Check("loss", math.nan, 1.0),)).excess
    assert not all_passed([])


def test_the_report_shows_what_failed_and_survives_json() -> None:
    outcomes = [Outcome("machine", "passed", 1.0, Findings({"gpu": "a card"})), Outcome("train text", "failed", 2.0, too_far(), "too far"),
                Outcome("speed text", "passed", 3.0, Findings({"rows/s": 7})), Outcome("ring of one", "not run", error="no time was left")]
    text = page(outcomes, device="cuda", date="today", seconds=6)
    assert text.startswith("# today: check of a card: 2 of 4 passed\n")
    assert "| train text | loss | 2.00e-01 | 0.1 | **too far** |\n| train text | gradient | 0.00e+00 | 0.1 |  |" in text
    assert "### ring of one: not run\n\n```\nno time was left\n```" in text
    assert "| network | rows/s |\n| --- | --- |\n| text | 7 |" in text
    stored = json.loads(json.dumps(document(outcomes, device="cuda", date="today", seconds=6)))
    assert [Outcome.from_plain(step) for step in stored["steps"]] == outcomes
    assert (stored["passed"], document(outcomes[:1], device="cuda", date="today", seconds=6)["passed"]) == (False, True)
    assert "# today: check of a CPU in place of a GPU: all passed" in page(outcomes[:1], device="cpu", date="today", seconds=6)


def write_kit(folder: Path, *, python: str) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "data/part").write_bytes(b"rows")
    digest = "a2e1ea9e7b2d5b3f8a0d7c0a5e8bf09fa6e5a7d64e1a23dbff0cf0c5ad8bd2b3"
    (folder / "manifest.json").write_text(json.dumps({"python": python, "files": {"data/part": digest}}, indent=1) + "\n")
    return folder


def test_a_changed_file_of_the_kit_is_named(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match=r"^1 files of the kit are missing or changed \(data/part\); copy the folder again\.$"):
        require_whole_kit(write_kit(tmp_path, python="3.12"))


def run_script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "gpu_check.sh"
    script.write_bytes((ROOT / "scripts/gpu_check.sh").read_bytes())
    return subprocess.run(["bash", str(script), *arguments], capture_output=True, text=True, check=False, timeout=120,
                          env=os.environ | {"PYTHON": sys.executable})


def test_the_script_refuses_a_missing_kit_another_python_and_no_folder(tmp_path: Path) -> None:
    bare = run_script(tmp_path, str(tmp_path / "work"))
    assert (bare.returncode, "there is no kit beside this script" in bare.stderr) == (2, True)
    kit = write_kit(tmp_path / "kit", python="3.99")
    assert "name a folder for all that the check writes" in run_script(kit, "--cpu").stderr
    other = run_script(kit, str(tmp_path / "work"))
    assert (other.returncode, other.stderr.startswith("gpu_check: the kit is for Python 3.99, ")) == (2, True)
    assert not (tmp_path / "work").exists()


def test_the_program_begins_where_nothing_but_numpy_is_installed() -> None:
    hidden = ("torch", "safetensors", "horovod", "sparkring", "pydantic", "pyarrow", "psutil", "yaml", "pyspark")
    code = f"import sys\nsys.modules.update(dict.fromkeys({hidden}))\nimport benchmarks.gpu_check.__main__\n"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_a_rank_s_code_needs_no_spark() -> None:
    """Nor OpenCV, scikit-learn, Petastorm or tokenizers: the machine has none of them."""
    hidden = ("pyspark", "py4j", "cv2", "sklearn", "petastorm", "tokenizers", "matplotlib")
    code = (f"import sys\nsys.modules.update(dict.fromkeys({hidden}))\nimport benchmarks.gpu_check.rank, sparkring.models.build\n"
            "import sparkring.spark_jobs.launch.meeting.rendezvous, sparkring.spark_jobs.launch.meeting.hosts\n"
            "from sparkring.pipelines.training.evaluation import evaluate\n")
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
