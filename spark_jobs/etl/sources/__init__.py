"""Where rows come from: tables, folders of files, and the files of a committed version.

May import: conf, pipelines/data, spark_jobs/spark, spark_jobs/etl/columns.
Not here: what becomes of the rows.
"""
