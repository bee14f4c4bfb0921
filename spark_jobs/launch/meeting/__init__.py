"""How the tasks and the driver of a ring find and hear each other: addresses, meeting points, the status board.

May import: conf, pipelines/parallel/shared_memory, spark_jobs/spark, spark_jobs/launch/rank.
Not here: starting and watching processes (launch/rank, launch/barrier).
"""
