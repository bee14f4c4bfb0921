"""A search for the best values of config keys: what is tried, how trials are remembered, one trial, and the page.

May import: conf, pipelines/data/dataset, pipelines/data/stores, pipelines/training/evaluation, pipelines/training/events,
spark_jobs, spark_jobs/launch/gpus, spark_jobs/recovery, spark_jobs/reporting, spark_jobs/reporting/charts,
spark_jobs/reporting/facts, spark_jobs/run, spark_jobs/spark.
Not here: training (spark_jobs/train.py).
"""
