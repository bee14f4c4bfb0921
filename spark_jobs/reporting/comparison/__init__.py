"""The report of strategies side by side: one page of facts and charts, from the events of their runs alone.

May import: conf, pipelines/data/stores, pipelines/training/events, spark_jobs/reporting, spark_jobs/reporting/charts,
spark_jobs/reporting/facts.
Not here: training the runs (spark_jobs/comparing); the report of one run (spark_jobs/reporting/page.py).
"""
