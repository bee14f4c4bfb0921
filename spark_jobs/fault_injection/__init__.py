"""The faults that ``sparkring chaos`` injects, and their cost.

May import: pipelines, spark_jobs/spark.
Not here: the command (spark_jobs/chaos.py).
"""
