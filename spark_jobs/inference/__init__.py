"""What a config would say about a table that nobody has described: columns' kinds, the task, what would leak.

In: facts about columns, measured on Spark; the choice made from them, which is pure; the choice as commented YAML. Not here: preparing
(spark_jobs/etl), the estimator (sparkring/estimator).
May import: conf, spark_jobs/etl/columns, spark_jobs/spark.
"""
