"""One module a schedule: GPipe, 1F1B, interleaved 1F1B, zero bubble. Pure.

May import: conf/schema, pipelines/parallel/schedules.
Not here: costs that are measured.
"""
