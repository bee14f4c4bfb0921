"""The report of a cross-validation: one page of facts and charts, from the metrics of its folds alone.

May import: pipelines/data/stores, spark_jobs/reporting, spark_jobs/reporting/charts, spark_jobs/reporting/facts.
Not here: training the folds (spark_jobs/cross_validating); the report of one run (spark_jobs/reporting/page.py).
"""
