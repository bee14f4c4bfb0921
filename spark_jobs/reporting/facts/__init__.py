"""Facts computed from what a workspace holds, as plain data and as words.

May import: conf, pipelines, spark_jobs/explaining, spark_jobs/run, spark_jobs/scoring.
Not here: drawing.
"""
