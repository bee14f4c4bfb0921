"""Model versions of a workspace, and the aliases that say which one is used.

In: documents of versions and aliases, and their changes. Not here: training, evaluating and comparing models (spark_jobs/retraining).
May import: everything left of spark_jobs.
"""
