"""From encoded rows to the files of a version: staging, file layout, the list of documents.

May import: conf, pipelines/data, spark_jobs/spark, spark_jobs/etl/columns, spark_jobs/etl/sources,
            spark_jobs/etl/encoding.
Not here: the commit (pipelines/data/dataset).
"""
