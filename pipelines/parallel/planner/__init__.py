"""The search for the layout with the shortest step: layouts, their predicted seconds and memory. Pure, given measurements.

May import: conf/schema, pipelines/parallel, pipelines/parallel/schedules, pipelines/parallel/stages.
Not here: measuring (training/profiling).
"""
