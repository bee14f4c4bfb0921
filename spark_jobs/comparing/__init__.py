"""Strategies side by side: the same rows and the same start, one run each, and what came of them.

May import: conf, pipelines/data/dataset, pipelines/data/stores, pipelines/training/checkpoints, pipelines/training/events, spark_jobs,
spark_jobs/recovery, spark_jobs/reporting/comparison, spark_jobs/run, spark_jobs/spark.
Not here: training (spark_jobs/train.py); curves and charts (spark_jobs/reporting/comparison).
"""
