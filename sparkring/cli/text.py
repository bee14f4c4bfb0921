"""The command ``sparkring generate``: texts that the trained decoder goes on with."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from sparkring.cli.answers import AsJson, ConfigName, Overrides, examples, show, show_json
from sparkring.cli.console import console_progress
from sparkring.conf.loading import load_config

DEFAULT_CONFIG = "local/python-text"

commands = typer.Typer()


@commands.command(epilog=examples('sparkring generate --prompt "def main("',
                                  'sparkring generate my.yaml --prompt "import " --tokens 400 --temperature 0.8 --seed 3'))
def generate(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, *,
             prompts: Annotated[list[str] | None, typer.Option(
                 "--prompt", help="How a text begins; may be repeated. Default: the beginning of a document.")] = None,
             tokens: Annotated[int, typer.Option(help="New tokens of a text at most.")] = 200,
             temperature: Annotated[float, typer.Option(help="0 takes the likeliest token, 1 draws as the model predicts.")] = 0.0,
             seed: Annotated[int, typer.Option(help="Of what is drawn: the same seed draws the same text.")] = 0,
             as_json: AsJson = False) -> None:
    """Continue texts with the trained decoder of a config's run.

    A decoder that train.parallel cuts into stages or shards writes through them, a rank each; any other one in this process, without Spark.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.generate import generate as run_generate

    written = run_generate(loaded, prompts or [""], max_tokens=tokens, temperature=temperature, seed=seed, progress=console_progress())
    if as_json:
        show_json([dataclasses.asdict(one) for one in written])
    else:
        show(written, as_json=False, text="\n\n".join(one.prompt + one.text for one in written))
