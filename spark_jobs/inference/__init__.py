"""What a config would say about a table that nobody has described: columns' kinds, the task, what would tell the label.

May import: conf, spark_jobs/etl/columns, spark_jobs/etl/sources, spark_jobs/spark.
Not here: preparing (spark_jobs/etl).
"""
