"""The command ``sparkring chaos``: the effect of faults on your own job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkring.cli.terminal.answers import AsJson, ConfigName, Overrides, examples, show
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config

if TYPE_CHECKING:
    from sparkring.spark_jobs.chaos import ChaosResult

LOST = 1
"""Exit code if the run did not finish, or lost or repeated a row."""

commands = typer.Typer()


@commands.command(epilog=examples("sparkring chaos local/flights", "sparkring chaos my.yaml --kills 20 --seed 7",
                                  "sparkring chaos my.yaml --kills 5 --kinds kill,suspend --set train.epochs=2"))
def chaos(config: ConfigName = "local/flights", overrides: Overrides = None, *,
          kills: Annotated[int, typer.Option(min=1, help="Number of faults, spread evenly over the run.")] = 20,
          seed: Annotated[int, typer.Option(help="Determines time, rank and kind of each fault: the same seed, the same steps.")] = 1,
          kinds: Annotated[str, typer.Option(help="Kinds of faults, separated by commas.")] = "kill,worker,suspend,delay,corrupt,disk",
          deadline: Annotated[float, typer.Option(min=1.0, help="Seconds that ranks wait for one that hangs.")] = 10.0,
          as_json: AsJson = False) -> None:
    """Train your job under random faults, and see what it loses.

    It is trained twice, beside your own runs and on the same dataset: once undisturbed, once while ranks and Spark's Python processes are
    killed (kill, worker), ranks hang forever or for a while (suspend, delay), a bit of the newest checkpoint is flipped (corrupt) and the
    disk is full (disk). The command reports the rows lost and repeated, the steps done again, the seconds to resume, the audit's verdict,
    and the held-out metrics beside the undisturbed run's. chaos.json in the run's folder holds the same for each strike.

    Needs a prepared dataset version. Exit code 1 if the run did not finish, or a row was lost or repeated.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.chaos import chaos as run_chaos

    result = run_chaos(loaded, num_faults=kills, seed=seed, kinds=[word.strip() for word in kinds.split(",") if word.strip()],
                       deadline_s=deadline, progress=console_progress())
    show(result, as_json=as_json, text=_text(result))
    if not result.survived or result.rows_lost or result.rows_repeated or result.audit != "green":
        raise typer.Exit(LOST)


def _text(result: ChaosResult) -> str:
    """The losses, in lines."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.kinds.items()))
    seconds, difference = (result.resume_s_median, result.resume_s_max), result.weights_difference
    resumed = "resumed after {:.1f} s in the median, {:.1f} s at most".format(*seconds) if seconds[0] is not None else ""
    lines = [
        f"{result.struck} of {result.planned} faults struck ({kinds}), {result.restarts} restarts: "
        + ("the run finished" if result.survived else f"the run ended: {result.failure}"),
        f"rows lost {result.rows_lost}, rows repeated {result.rows_repeated}",
        (f"steps done again {result.steps_redone}, at most {result.steps_redone_max} after one fault "
         f"(a checkpoint every {result.checkpoint_interval})"),
        *([resumed] if resumed else []),
        f"goodput {100 * result.goodput:.1f} %: share of the time spent on steps that count",
        f"audit: {result.audit}",
        *(f"validation {name} {value:.4f}, undisturbed {result.undisturbed[name]:.4f}" for name, value in result.validation.items()),
        *([] if difference is None else [f"weights differ by {difference:.1e} of their norm"]),
        f"each strike: {result.url}/chaos.json",
    ]
    return "\n".join(lines)
