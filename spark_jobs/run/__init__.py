"""A training run as its driver sees it: the list of runs, the run folder, what makes two runs the same, and the progress that ranks report.

May import: conf, pipelines/data, pipelines/training, spark_jobs/spark.
Not here: starting ranks (launch), starting again after a failure (recovery).
"""
