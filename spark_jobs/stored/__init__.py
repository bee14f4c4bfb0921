"""Commands on stored data: datasets, runs, checkpoints, receipts. They start no Spark.

May import: conf, pipelines, spark_jobs/run, spark_jobs/scoring, spark_jobs/spark.
Not here: writing datasets and checkpoints.
"""
