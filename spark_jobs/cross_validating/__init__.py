"""Cross-validation: one run for each fold of a dataset version, several rings at once, and what the folds say together.

May import: conf, pipelines/data/dataset, pipelines/data/stores, spark_jobs, spark_jobs/launch/gpus, spark_jobs/recovery,
spark_jobs/reporting/folds, spark_jobs/spark.
Not here: folds of rows (spark_jobs/etl), training (spark_jobs/train.py), the page (spark_jobs/reporting/folds).
"""
