"""What happens after a ring failed: how often, on how many slots, and when to stop.

May import: conf, pipelines/training/job, spark_jobs/spark.
Not here: noticing the failure (launch/meeting/watch.py).
"""
