"""Tracking with MLflow: what a run's folder holds is read, sent once, and noted as sent.

May import: conf, models, pipelines/data, pipelines/training, spark_jobs/registry, spark_jobs/run, spark_jobs/scoring, spark_jobs/spark.
Not here: the event stream itself (pipelines/training/events); the aliases that MLflow's follow (spark_jobs/registry).
"""
