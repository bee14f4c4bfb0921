"""How the tasks and the driver of a ring find and watch each other: addresses, meeting points, the status board.

May import: conf, spark_jobs/spark, spark_jobs/launch/rank.
Not here: starting processes.
"""
