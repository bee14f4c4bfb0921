"""The faults that ``sparkring chaos`` brings about, and what they cost.

May import: pipelines, spark_jobs/spark.
Not here: the command (spark_jobs/chaos.py).
"""
