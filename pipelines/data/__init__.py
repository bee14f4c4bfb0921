"""Dataset versions and their rows: where they lie, what they are, in which order they come, how a rank loads them.

May import: nothing of ours.
Not here: Spark, Horovod, Petastorm; writing a dataset (spark_jobs/etl).
"""
