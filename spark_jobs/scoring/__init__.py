"""Predictions on Spark, their exact metrics, and the baselines.

May import: conf, models, pipelines/data, pipelines/training, spark_jobs/etl.
Not here: training; metrics on ranks (training/evaluation).
"""
