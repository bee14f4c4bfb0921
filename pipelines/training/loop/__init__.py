"""The training loop of one rank: steps, epochs, receipts, checkpoints, rollbacks, and the end of a run.

May import: conf, models, pipelines/data, pipelines/parallel, pipelines/training/job, pipelines/training/strategies,
pipelines/training/strategies/relaxed, pipelines/training/checkpoints, pipelines/training/events, pipelines/training/evaluation.
Not here: setting up a rank (train_rank.py), one optimizer step (strategies), files of checkpoints (checkpoints).
"""
