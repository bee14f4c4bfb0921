"""Retraining: whether to train again, how the candidate compares with the champion, and which of them is used.

In: pure decisions, and the paired comparison on Spark. Not here: the order of a night's steps (spark_jobs/retrain.py), the aliases
(spark_jobs/registry).
May import: everything left of spark_jobs, spark_jobs/registry, spark_jobs/scoring, spark_jobs/spark.
"""
