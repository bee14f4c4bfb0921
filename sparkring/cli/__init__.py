"""The command line's verbs: arguments in, one call of a job, text or JSON out.

May import: conf, models, pipelines, spark_jobs, the rooms inside.
Not here: the work itself (spark_jobs).
"""
