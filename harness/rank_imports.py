"""What ranks import, imported once, in the process that they are forked from (ranks.py).

A rank that takes an optimizer's step imports ``torch._dynamo`` then, which takes longer than all else that a short rank does.
"""

from __future__ import annotations

import gc
import importlib

NAMES = (
    "torch", "torch._dynamo", "horovod.torch", "horovod.runner.http.http_server", "pandas", "pyarrow.parquet",
    "sklearn.metrics", "sparkring.pipelines.training.train_rank", "sparkring.spark_jobs.stored.audit", "harness.datasets",
    "harness.ranks")

for name in NAMES:
    importlib.import_module(name)
gc.disable()  # a collection would write to pages that this process and ranks share; a rank enables it again
gc.freeze()
