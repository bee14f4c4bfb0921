"""What a night of ``sparkring retrain`` costs beside training: a night with a month of new flights, and a night without news.

    uv run python -m benchmarks.retrain

The shipped job on flights of January to September 2013, a file for each month, and a split that rolls. The champion is there already.
Then October's file comes: all of a process's seconds but those of training count as overhead, from the start of Python and Spark to the
record of the decision. Then the same command once more, with nothing new.

The share depends on how long training takes, so it is that of a night with about nine minutes of it, for a network of a million
weights; the seconds beside training, which hardly depend on it, are a figure of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.support.report import print_result
from harness.flight_nights import write_config, write_months

HIDDEN, EPOCHS = [1024, 512, 256], 60
"""The candidate's network, and for how long it trains; the shipped job's own takes seconds."""


def main() -> None:
    """Run the three nights."""
    with tempfile.TemporaryDirectory(prefix="sparkring-retrain-") as name:
        folder = Path(name)
        write_months(folder, range(1, 10))
        config = write_config(folder, model={"hidden": HIDDEN})
        first = _night(config, epochs=1)
        write_months(folder, [10])
        news = _night(config, epochs=EPOCHS)
        none = _night(config, epochs=EPOCHS)
    if (first["outcome"], news["number"], none["outcome"]) != ("promoted", 2, "nothing new"):
        raise RuntimeError(f"the nights went another way: {first}, {news}, {none}")
    beside = news["wall_s"] - news["train_seconds"]
    print_result(
        [{"night": words, "outcome": night["outcome"], "seconds": f"{night['wall_s']:.1f}",
          "of them training": f"{night['train_seconds']:.1f}"}
         for words, night in (("first", first), ("a month of new flights", news), ("no news", none))],
        {"overhead": beside / news["train_seconds"], "beside_training_s": beside, "train_s": news["train_seconds"], "epochs": EPOCHS,
         "noop_s": none["wall_s"]})


def _night(config: str, *, epochs: int) -> dict[str, Any]:
    began = time.perf_counter()
    ended = subprocess.run([sys.executable, "-m", "sparkring", "retrain", config, "--json", "--set", f"train.epochs={epochs}"],
                           check=True, stdout=subprocess.PIPE, text=True)
    return {**json.loads(ended.stdout.splitlines()[-1]), "wall_s": time.perf_counter() - began}


if __name__ == "__main__":
    main()
