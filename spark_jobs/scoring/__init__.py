"""Predictions on Spark, exact metrics of them, and what a network must beat.

May import: models, pipelines/data, pipelines/training, spark_jobs/etl.
Not here: training; metrics on ranks (training/evaluation).
"""
