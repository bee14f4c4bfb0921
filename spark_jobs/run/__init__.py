"""A training run as its driver sees it: its place and folder, what makes two runs the same, and the progress of ranks.

May import: conf, models, pipelines, spark_jobs/registry, spark_jobs/spark.
Not here: starting ranks (launch), starting again after a failure (recovery).
"""
