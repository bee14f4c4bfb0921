"""A search for the best values of config keys: what is tried, how trials are remembered, and one trial.

May import: conf, pipelines/data/dataset, pipelines/data/stores, pipelines/training/evaluation, pipelines/training/events,
spark_jobs, spark_jobs/recovery, spark_jobs/run, spark_jobs/spark.
Not here: training (spark_jobs/train.py).
"""
