"""Training again on a schedule: when it is due, the comparison of champion and candidate, and the record of each time.

May import: conf, pipelines/data, pipelines/training, spark_jobs/etl, spark_jobs/registry, spark_jobs/scoring.
Not here: the order of the steps (spark_jobs/retrain.py); the registry (spark_jobs/registry).
"""
