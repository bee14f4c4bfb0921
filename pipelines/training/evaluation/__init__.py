"""Exact metrics on held-out rows, over all ranks at once.

May import: models, pipelines/data, pipelines/parallel/collectives.
Not here: training.
"""
