"""The command line's side of the terminal: arguments that commands share, answers, progress, Ctrl-C, and quiet libraries.

May import: conf, models, spark_jobs/spark.
Not here: commands.
"""
