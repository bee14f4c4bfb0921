"""A rank's entry points: train, evaluate, generate; and what they share.

May import: conf, models, pipelines/data, pipelines/parallel, the rooms inside.
Not here: the loop, one step, one checkpoint, one metric (the rooms inside).
"""
