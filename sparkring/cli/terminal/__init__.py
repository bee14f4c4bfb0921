"""The terminal's side of the commands: shared arguments, answers, progress, Ctrl-C, and quiet libraries.

May import: conf, models, spark_jobs/spark.
Not here: commands.
"""
