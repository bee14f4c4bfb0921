"""Predictions on Spark, their exact metrics, and the baselines.

May import: conf, models, pipelines/data, pipelines/training, spark_jobs/etl, spark_jobs/launch/gpus, spark_jobs/run, spark_jobs/spark.
Not here: training; metrics on ranks (training/evaluation).
"""
