"""Commands on stored data: datasets, checkpoints, receipts. They start no Spark.

May import: pipelines, spark_jobs/scoring, spark_jobs/spark.
Not here: writing datasets and checkpoints.
"""
