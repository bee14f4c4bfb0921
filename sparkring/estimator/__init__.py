"""The Spark ML estimator: a DataFrame in, a fitted model out, inside Pipelines and CrossValidators.

May import: conf, models, pipelines, spark_jobs, sparkring/notebook.
Not here: the jobs that it calls (spark_jobs); the choice of columns' uses (spark_jobs/inference).
"""
