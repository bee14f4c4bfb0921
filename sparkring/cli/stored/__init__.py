"""The commands on stored data: datasets, runs, checkpoints, receipts.

May import: conf, pipelines, spark_jobs, sparkring/cli/terminal.
Not here: the work itself (spark_jobs/stored).
"""
