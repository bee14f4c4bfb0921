"""The command ``sparkring generate``: continue texts with the trained decoder."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from sparkring.cli.terminal.answers import AsJson, ConfigName, Overrides, examples, show, show_json
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config

DEFAULT_CONFIG = "local/python-text"

commands = typer.Typer()


@commands.command(epilog=examples('sparkring generate --prompt "def main("',
                                  'sparkring generate my.yaml --prompt "import " --tokens 400 --temperature 0.8 --seed 3'))
def generate(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, *,
             prompts: Annotated[list[str] | None, typer.Option(
                 "--prompt", help="The beginning of a text; may be repeated. Default: the beginning of a document.")] = None,
             tokens: Annotated[int, typer.Option(help="The most new tokens of a text.")] = 200,
             temperature: Annotated[float, typer.Option(help="0 takes the likeliest token, 1 draws by predicted probability.")] = 0.0,
             seed: Annotated[int, typer.Option(help="Determines the draws: the same seed draws the same text.")] = 0,
             as_json: AsJson = False) -> None:
    """Continue texts with the trained decoder of a config's run.

    A decoder that train.parallel cuts into stages or shards runs on a ring, with a rank for each; any other one runs in this process,
    without Spark.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.generate import generate as run_generate

    written = run_generate(loaded, prompts or [""], max_tokens=tokens, temperature=temperature, seed=seed, progress=console_progress())
    if as_json:
        show_json([dataclasses.asdict(one) for one in written])
    else:
        show(written, as_json=False, text="\n\n".join(one.prompt + one.text for one in written))
