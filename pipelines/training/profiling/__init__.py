"""Measurements for the planner: seconds and bytes of a model's blocks, and of links between ranks.

May import: conf, models, pipelines/data, pipelines/parallel, pipelines/training/job, pipelines/training/strategies.
Not here: choosing a layout (parallel/planner).
"""
