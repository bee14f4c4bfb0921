"""The model versions of a workspace, and the aliases that say which of them is used.

May import: conf, pipelines/data, pipelines/training.
Not here: training, evaluating and comparing models (spark_jobs/retraining).
"""
