"""Tracking with MLflow: what a run's folder holds is read, sent once, and noted as sent.

In: following a run, MLflow's server, the model as a pyfunc, aliases. Not here: the event stream itself (pipelines/training/events).
May import: conf, pipelines/data, pipelines/training, spark_jobs/run, spark_jobs/spark.
"""
