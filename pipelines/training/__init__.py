"""A rank's entry points: train, evaluate, generate; and what ties the rooms inside together for them.

May import: conf, models, pipelines/data, pipelines/parallel, the rooms inside.
Not here: one step, one checkpoint, one metric (the rooms inside).
"""
