"""Exact metrics on held-out rows, over all ranks at once.

May import: conf, models, pipelines/data, pipelines/parallel/collectives, pipelines/training/job.
Not here: training.
"""
