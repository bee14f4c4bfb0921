"""Recovery after a ring fails: whether to restart, on how many slots, and when to stop.

May import: conf, pipelines/training/job, spark_jobs/spark.
Not here: noticing a failure (launch/barrier/watch.py), naming its cause (launch/rank/end.py).

The whole way from a killed rank to the next generation is drawn in ``spark_jobs/launch/__init__.py``.
"""
