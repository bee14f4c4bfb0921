"""Recovery after a ring fails: whether to restart, on how many slots, and when to stop.

May import: conf, pipelines/training/job, spark_jobs/spark.
Not here: detecting the failure (launch/meeting/watch.py).
"""
