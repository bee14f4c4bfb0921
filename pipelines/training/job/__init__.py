"""The definition of a training job: the driver's order, the task, the layout, the optimizer, and the model's files.

May import: conf, models, pipelines/data, pipelines/parallel.
Not here: training (loop, strategies).
"""
