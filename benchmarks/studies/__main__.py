"""Run a study and write its numbers, its page and its pictures.

    uv run python -m benchmarks.studies large-batches            # some minutes; into docs/studies
    uv run python -m benchmarks.studies staleness --quick        # some seconds, to see that it works; into build/studies
    uv run python -m benchmarks.studies scaling --redraw         # from the numbers that are there
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.studies.catalogue import STUDIES
from benchmarks.studies.study import ROOT, measured, redraw, write
from sparkring.spark_jobs.launch.rank import environment as rank_environment


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="benchmarks.studies", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=STUDIES)
    parser.add_argument("--output", type=Path, help="folder; default docs/studies, or build/studies with --quick")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--quick", action="store_true", help="as small as possible")
    kinds.add_argument("--redraw", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    folder = asked.output or ROOT / ("build/studies" if asked.quick else "docs/studies")
    study = STUDIES[asked.name]
    if asked.redraw:
        redraw(study, folder)
    else:
        os.environ.update({"OMP_NUM_THREADS": "1", **rank_environment.MEMORY})  # before the first rank starts
        write(study, measured(study, quick=asked.quick), folder)
    print(folder / f"{study.name}.md")


if __name__ == "__main__":
    main()
