"""From raw columns to what a dataset stores: numbers, arrays, images, tokens, and their Petastorm schema.

May import: conf, models, pipelines/data/dataset, spark_jobs/spark, spark_jobs/etl/columns.
Not here: fitting (spark_jobs/etl).
"""
