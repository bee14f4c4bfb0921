"""Strategies whose ranks are not in lock-step (docs/adr/0011): local SGD, and stale synchronous training.

May import: conf, models, pipelines/data, pipelines/parallel, pipelines/training/job, pipelines/training/parameter_server,
pipelines/training/strategies.
Not here: steps that all ranks do together (pipelines/training/strategies).
"""
