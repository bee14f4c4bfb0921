"""The commands ``submit``, which runs a job as a Spark application, and ``pack``, for nodes without a suitable Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkring.cli.terminal.answers import ConfigName, Overrides, examples
from sparkring.spark_jobs.submission.pack import pack as pack_python
from sparkring.spark_jobs.submission.submit import Job, default_folder, make_submission

commands = typer.Typer()


@commands.command(epilog=examples(
    "sparkring submit yarn/flights --job train --print",
    "sparkring submit my.yaml --set spark.conf.spark.submit.deployMode=cluster --set workspace=/mnt/shared/runs/mine",
    "sparkring submit yarn/flights --package dist/sparkring-0.1.0-py3-none-any.whl"))
def submit(
        context: typer.Context,
        config: ConfigName,
        overrides: Overrides = None,
        job: Annotated[Job, typer.Option(help="The command to run there.")] = Job.DEMO,
        package: Annotated[Path | None, typer.Option(help="A wheel to run; default: the code that runs here.")] = None,
        only_print: Annotated[bool, typer.Option("--print", help="Print the line that would be run, and run nothing.")] = False) -> None:
    """Run a job as its own Spark application: compose the spark-submit line from the config and run it.

    spark.master and spark.conf of the config become its options; spark.submit.deployMode places the driver. The code is shipped as
    an archive; torch, Horovod and the other libraries must be installed on every node, in the Python that spark.pyspark.python names.
    """
    submission = make_submission(config, job, overrides=overrides or [], folder=default_folder(), package=package, networks=context.obj)
    if only_print:
        typer.echo(submission.line)
        return
    raise typer.Exit(submission.run())


@commands.command(epilog=examples("sparkring pack environment.tar", "hdfs dfs -put environment.tar /environments/"))
def pack(archive: Annotated[Path, typer.Argument(help="File to write: .tar, .tar.gz or .tgz.")]) -> None:
    """Write this Python with all its libraries into an archive that runs from any folder, for nodes without it.

    Name it in the config: spark.yarn.dist.archives: hdfs:///environments/environment.tar#environment, and
    spark.pyspark.python: ./environment/bin/python. The nodes need the same processor and a C library at least as new as this machine's.
    """
    typer.echo(f"{pack_python(archive)} of {archive.stat().st_size >> 20:,} MB")
