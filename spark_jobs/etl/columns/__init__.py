"""Column expressions: row ids, splits, labels, derived values. No session, no data.

May import: conf, pipelines/data/dataset, spark_jobs/spark/versions.
Not here: reading and writing.
"""
