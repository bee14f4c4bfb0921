"""Write ``docs/figures.md``, the page of today's figures, from the last lines of the benchmarks; and README's table of platforms.

    python scripts/figures.py                           # docs/figures/*.jsonl -> docs/figures.md, README.md
    python scripts/figures.py scan loader               # run these benchmarks, store their last lines, write the page
    python scripts/figures.py --output scan=scan.txt    # the same from the saved output of a run on this commit

Each benchmark ends with one JSON object. ``docs/figures/NAME.jsonl`` keeps one line per run: commit, date and that object. The page
shows the last line. ``FIGURES`` says which keys it shows, the bar of each, and the peer measured in the same run.
Uses Python's standard library alone.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import eq, ge, le
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINES = ROOT / "docs/figures"
PAGE = ROOT / "docs/figures.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- platforms: written by `python scripts/figures.py` -->", "<!-- end of platforms -->"
COMPARE = {"at least": ge, "at most": le, "exactly": eq}
HEAD = """# Figures

Written by `python scripts/figures.py` from [figures/](figures); do not edit. A *peer* is what a figure is compared with,
for example another library. Each benchmark runs its peer too, in alternating rounds, and a ratio is the median over the
rounds. A *bar* is the target that a figure must reach; a figure in **bold** misses it. "Times as fast" and "times the
peer's seconds" are ratios to the peer. An error or a loss of time is a share: 0.05 is 5 %. Absolute times are of a
shared machine with 2 cores and no GPU. The [log](log/README.md) has the history and what was tried.

| command | figure | value | bar | peer | commit | date |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Shown:
    """One row of the page."""

    key: str
    """Of the benchmark's JSON object; ``a.b`` is key b of object a, ``a+b`` a sum."""
    what: str
    bar: str = ""
    """``at least 1.0``, ``at most 0.5 x key``, ``exactly green``, or nothing."""
    peer: str = ""


FIGURES: Mapping[str, Sequence[Shown]] = {
    "step": (
        Shown("ratio_to_ddp", "times as fast, 2 ranks, 0.5 s step", "at least 1.0", "torch DDP"),
        Shown("ratio_to_horovod_optimizer", "times as fast, 2 ranks, 0.5 s step", "at least 1.15", "Horovod's optimizer"),
        Shown("efficiency_2", "efficiency of 2 ranks, 0.5 s step", "at least 0.93", "1 rank"),
        Shown("efficiency_2_small", "efficiency of 2 ranks, 0.17 s step", "at least 0.85", "1 rank"),
        Shown("efficiency_2_flights", "efficiency of 2 ranks, flights network", "", "1 rank")),
    "hosts": (
        Shown("ratio_to_ddp", "times as fast, 2 hosts, 1 Gb/s", "at least 1.0", "torch DDP"),
        Shown("ratio_to_horovod_optimizer", "times as fast, 2 hosts, 1 Gb/s", "at least 1.1", "Horovod's optimizer"),
        Shown("overlap", "share of summing hidden by the backward pass, 1 Gb/s"),
        Shown("ratio_to_ddp_unshaped", "times as fast, 2 hosts, link as fast as memory", "", "torch DDP"),
        Shown("ratio_to_ddp_small", "times as fast, 2 hosts, a network of 7 ms a step", "", "torch DDP")),
    "launch": (
        Shown("ring_s", "seconds to launch 2 ranks and sum once"),
        Shown("ratio_to_torch_distributor", "times the peer's seconds to launch", "at most 0.35", "TorchDistributor"),
        Shown("ratio_to_horovod_spark", "times the peer's seconds to launch", "at most 0.35", "horovod.spark.run")),
    "demo": (
        Shown("total_s", "seconds of `make demo` after set-up", "at most 180"),
        Shown("auc", "test AUC of the network", "at least 1.0 x auc_logistic", "logistic regression")),
    "loader": (
        Shown("rows_per_s", "rows/s, 33 columns"),
        Shown("ratio_to_arrow", "times as fast, tables", "at least 0.7", "Arrow's scan, unshuffled"),
        Shown("ratio_to_petastorm", "times as fast, tables", "at least 10", "Petastorm, its faster pool"),
        Shown("images_ratio_to_petastorm", "times as fast, images", "at least 1.5", "Petastorm, its faster pool"),
        Shown("tokens_ratio_to_petastorm", "times as fast, tokens", "at least 3", "Petastorm, its faster pool"),
        Shown("peak_rss_mb", "peak MB of the process that reads", "at most 1.0 x rss_budget_mb")),
    "petastorm": (
        Shown("passed_newest", "of Petastorm's own tests pass, newest pyarrow", "at least 1.0 x passed_14", "pyarrow 14"),),
    "mosaic_streaming": (
        Shown("ratio_to_mosaic", "times as fast, tables", "", "MosaicML Streaming 0.13"),
        Shown("images_ratio_to_mosaic", "times as fast, images", "", "MosaicML Streaming 0.13"),
        Shown("tokens_ratio_to_mosaic", "times as fast, tokens", "", "MosaicML Streaming 0.13")),
    "memory": (
        Shown("table_mb", "peak MB, small row groups", "at most 1.0 x table_budget_mb"),
        Shown("large_mb", "peak MB, row groups of 264 MB", "at most 1.0 x large_budget_mb"),
        Shown("images_mb", "peak MB, images", "at most 1.0 x images_budget_mb")),
    "prepare": (
        Shown("ratio_to_plain_parquet", "times the peer's seconds to write", "at most 1.25", "Spark's Parquet write"),
        Shown("ratio_to_plain_parquet_shuffled", "times the peer's seconds to write", "at most 1.25", "Spark's Parquet write, shuffled"),
        Shown("speedup_over_petastorm_rows", "times as fast, writing", "at least 8", "Petastorm's `dict_to_spark_row`")),
    "score": (
        Shown("rows_per_s", "rows/s scored, 1 M flights, 2 cores"),
        Shown("raw_rows_per_s", "rows/s encoded and scored, the same flights"),
        Shown("ratio_to_predict_batch_udf", "times as fast, encoded rows", "at least 1.2", "Spark's predict_batch_udf"),
        Shown("raw_ratio_to_predict_batch_udf", "times as fast, raw rows", "at least 1.2", "Spark's predict_batch_udf"),
        Shown("ratio_to_onnx_runtime", "times as fast, encoded rows", "", "predict_batch_udf with ONNX Runtime")),
    "estimator": (
        Shown("ratio_to_torch_distributor", "times the peer's seconds from a DataFrame to a model, 300,000 rows", "at most 1.0",
              "TorchDistributor"),
        Shown("auc", "test AUC of that model", "at least 1.0 x torch_distributor_auc", "TorchDistributor")),
    "retrain": (
        Shown("overhead", "share of training's seconds that a night with new rows takes beside it", "at most 0.10"),
        Shown("beside_training_s", "those seconds"),
        Shown("noop_s", "seconds of a night without news", "at most 15")),
    "year": (
        Shown("auc_retrained", "AUC on the latest 15 days, mean of 9 months, retrained every month", "at least 1.0 x auc_never_retrained",
              "the model of March"),),
    "matrix": (
        Shown("cells", "cells of versions, each installed and run", "at least 8"),
        Shown("green", "of them green", "at least 1.0 x cells"),
        Shown("pythons", "versions of Python among them", "at least 3"),
        Shown("sparks", "versions of Spark among them", "at least 4")),
    "staleness": (
        Shown("time_ratio_to_ring", "times the peer's seconds to a loss, one of 2 ranks 4 times as slow", "at most 0.7", "exact training"),
        Shown("staleness_max", "largest staleness of an update", "at most 1.0 x bound")),
    "collectives": (
        Shown("worst_over_best", "times the seconds of the best way to sum between hosts, ours by cost, 1 KB to 64 MB, worst",
              "at most 1.10", "the best of ring, tree and two levels"),
        Shown("worst_over_best_shared", "the same on 2 hosts of 2 ranks, 4 ranks on 2 cores", "", "the best of ring, tree and two levels"),
        Shown("ratio_to_torch_64mb", "times the peer's seconds to sum 64 MB, 2 and 4 hosts, worse", "at most 1.05", "torch's Gloo"),
        Shown("ratio_to_horovod_64mb", "times the peer's seconds to sum 64 MB, 2 and 4 hosts, worse", "", "Horovod"),
        Shown("ratio_to_torch_1kb", "times the peer's seconds to sum 1 KB, worst", "", "torch's Gloo")),
    "compression": (
        Shown("best_speedup", "times as fast to a loss, 2 hosts, 100 Mb/s, gradients in bf16", "at least 1.6", "plain gradients"),),
    "search": (
        Shown("speedup", "times as fast, 16 trials on 2 slots, rings of 1 rank at once", "at least 1.5", "one by one on both slots"),
        Shown("pruned_share", "share of trials that the median pruner ends early")),
    "order": (
        Shown("open_s+jump_s", "seconds to open 10^9 rows and jump to a step", "at most 1"),
        Shown("rss_mb", "MB for 10^9 rows", "at most 200"),
        Shown("step_us_large", "us a step to compute the order of 10^9 rows", "at most 1.5 x step_us_small", "the same for 10^6 rows")),
    "scan": (Shown("files_per_s", "files/s checked before a run", "at least 1000"),),
    "checkpoint": (
        Shown("wait_share", "share of training spent waiting", "at most 0.02"),
        Shown("copy_ratio", "times as fast, writing", "at least 0.8", "a plain copy of the same bytes")),
    "recovery": (
        Shown("resume_s_median", "seconds from kill to next step, median", "at most 8"),
        Shown("resume_s_max", "seconds from kill to next step, most", "at most 15"),
        Shown("steps_redone_max", "steps redone, most", "at most 1.0 x checkpoint_interval"),
        Shown("rows_lost+rows_repeated", "rows lost or repeated", "exactly 0"),
        Shown("torch_distributor_resume_s_median", "peer's seconds from kill to next step", "", "TorchDistributor, checkpoints by hand"),
        Shown("horovod_elastic_resume_s_median", "peer's seconds from kill to next step", "",
              "Horovod's run_elastic; the surviving rank continues")),
    "goodput": (
        Shown("goodput", "share of time spent on steps that count, a failure every 20 x the seconds to resume", "at least 0.92"),
        Shown("rows_lost+rows_repeated", "rows lost or repeated", "exactly 0")),
    "soak": (
        Shown("survived", "faults survived in one job", "at least 100"),
        Shown("audit", "verdict of `sparkring audit`", "exactly green"),
        Shown("rows_lost+rows_repeated", "rows lost or repeated", "exactly 0"),
        Shown("resume_s_median", "seconds to resume, median")),
    "transport": (
        Shown("sidecar_over_torch_worst", "times the peer's seconds a message, worst size", "at most 1.2", "torch.distributed send/recv"),
        Shown("sockets_over_torch_worst", "times the peer's seconds a message by sockets, one host and two, worst size", "at most 1.2",
              "torch.distributed send/recv"),
        Shown("horovod_ms_256k", "ms a message by Horovod, 256 KB", "at most 1.5")),
    "pipeline": (
        Shown("bubble_over_theory.gpipe", "times the idle time of theory, GPipe", "at most 1.1", "the formula"),
        Shown("bubble_over_theory.1f1b", "times the idle time of theory, 1F1B", "at most 1.1", "the formula"),
        Shown("bubble_over_theory.interleaved", "times the idle time of theory, interleaved", "at most 1.1", "the formula"),
        Shown("bubble_over_theory.zero_bubble", "times the idle time of theory, zero bubble", "at most 1.1", "the formula")),
    "pipeline_peer": (
        Shown("gpipe_ratio_to_torch", "times as fast, GPipe, 2 stages", "at least 1.0", "torch.distributed.pipelining"),
        Shown("one_f_one_b_ratio_to_torch", "times as fast, 1F1B, 2 stages", "at least 1.0", "torch.distributed.pipelining")),
    "planner": (
        Shown("median_step_error", "error of a predicted step, median", "at most 0.10", "the measured step"),
        Shown("worst_step_error", "error of a predicted step, worst", "at most 0.25", "the measured step"),
        Shown("memory_error", "error of predicted memory, worst", "at most 0.15", "the measured bytes"),
        Shown("median_regret", "time lost by the chosen layout, median", "at most 0.05", "the fastest layout"),
        Shown("worst_regret", "time lost by the chosen layout, worst", "at most 0.15", "the fastest layout")),
    "paper": (Shown("worst_efficiency_error", "error of predicted efficiency, worst", "at most 0.05", "published efficiency"),),
}


def main() -> None:
    """Run what is asked for, store it, and write the page."""
    parser = argparse.ArgumentParser(description="Write docs/figures.md.")
    parser.add_argument("benchmarks", nargs="*", help="benchmarks to run now")
    parser.add_argument("--output", action="append", default=[], metavar="NAME=FILE", help="the saved output of a benchmark")
    options = parser.parse_args()
    for name in options.benchmarks:
        store(name, output_of(sys.executable, "-m", f"benchmarks.{name}"))
    for pair in options.output:
        name, _, file = pair.partition("=")
        store(name, Path(file).read_text(encoding="utf-8"))
    PAGE.write_text(page(LINES), encoding="utf-8")
    README.write_text(with_platforms(README.read_text(encoding="utf-8"), LINES), encoding="utf-8")


def output_of(*command: str) -> str:
    """What a command writes to its standard output, run in the checkout."""
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def store(name: str, output: str) -> None:
    """Append the last line of a benchmark's output to its file, with today's commit and date."""
    if name not in FIGURES:
        sys.exit(f"error: {name} is no benchmark of this page; expected one of {', '.join(FIGURES)}.")
    line = {"commit": output_of("git", "rev-parse", "--short=7", "HEAD").strip(),
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "figures": json.loads(output.splitlines()[-1])}
    with (LINES / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def page(folder: Path) -> str:
    """The whole page, of the last line of each file in ``folder``."""
    return HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in rows(folder))


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """The cells of each row; a figure that a line lacks has none."""
    for name, shown in FIGURES.items():
        file = folder / f"{name}.jsonl"
        if not file.is_file():
            continue
        last = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
        for one in shown:
            value = value_of(last["figures"], one.key)
            if value is not None:
                yield (f"`python -m benchmarks.{name}`", one.what, marked(value, one.bar, last["figures"]),
                       bar_words(one.bar, last["figures"]), one.peer, last["commit"], last["date"])


def value_of(figures: Mapping[str, Any], key: str) -> Any:
    """The value of ``key``, or None. A line from the log may hold a sum under its whole key."""
    if key in figures:
        return figures[key]
    if "+" in key:
        parts = [figures.get(part) for part in key.split("+")]
        return None if None in parts else sum(parts)
    section, _, inner = key.partition(".")
    return figures[section].get(inner) if inner and section in figures else None


def limit_of(bar: str, figures: Mapping[str, Any]) -> tuple[str, Any]:
    """The comparison and the limit of a bar."""
    comparison, _, limit = bar.rpartition(" ")
    if " x" in comparison:
        comparison, factor = comparison.removesuffix(" x").rsplit(" ", 1)
        return comparison, float(factor) * figures[limit]
    return comparison, limit if limit == "green" else float(limit)


def marked(value: Any, bar: str, figures: Mapping[str, Any]) -> str:
    """The value as text, in bold where it misses its bar."""
    text = words(value)
    if not bar:
        return text
    comparison, limit = limit_of(bar, figures)
    return text if COMPARE[comparison](value, limit) else f"**{text}**"


def bar_words(bar: str, figures: Mapping[str, Any]) -> str:
    """The bar with its limit as a number."""
    if not bar:
        return ""
    comparison, limit = limit_of(bar, figures)
    return f"{comparison} {words(limit)}"


def words(value: Any) -> str:
    """Numbers with thousands separators and at most four significant digits below 1000."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def with_platforms(readme: str, folder: Path) -> str:
    """README with the table between its two marks written again."""
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n{platforms(folder)}\n{END}{rest.partition(END)[2]}"


def platforms(folder: Path) -> str:
    """The last run of ``benchmarks.matrix`` as two Markdown tables: what was run, and what could not be."""
    file = folder / "matrix.jsonl"
    if not file.is_file():
        return "Not run yet."
    found = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])["figures"]
    heads = ("platform", "Python", "Java", "Spark", "pyarrow", "NumPy", "pandas", "torch", "rows, AUC", "seconds", "date",
             "not as on the platform")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for run in found["runs"]:
        versions = [run["versions"][name] for name in ("pyspark", "pyarrow", "numpy", "pandas", "torch")]
        job = f"{run['rows']:,}, {run['auc']:.4f}" if run["green"] else "**failed**"
        cells = [run["platform"], run["python"], run.get("java", "17"), *versions, job, str(run["seconds"]), run["date"],
                 "; ".join(run["differs"])]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| not here | why |", "|---|---|", *(f"| {absent['what']} | {absent['reason']} |" for absent in found["absent"])]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
