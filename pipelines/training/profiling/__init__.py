"""What a model and its ranks take, measured for the planner.

May import: conf, models, pipelines/data, pipelines/parallel, pipelines/training/job, pipelines/training/strategies.
Not here: choosing a layout (parallel/planner).
"""
