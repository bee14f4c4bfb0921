"""Commands on stored data: datasets, runs, registered models, checkpoints, receipts. They start no Spark.

May import: conf, pipelines, spark_jobs/registry, spark_jobs/run, spark_jobs/scoring, spark_jobs/spark, spark_jobs/tracking.
Not here: writing datasets and checkpoints.
"""
