"""A model in stages: where its blocks are cut, their backward passes, and the executor that runs a schedule.

May import: conf/schema, models, pipelines/parallel, pipelines/parallel/transports, pipelines/parallel/schedules.
Not here: losses and optimizers (training/strategies).
"""
