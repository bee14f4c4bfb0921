"""Dataset versions and their rows: storage, manifests, row order, and loading on a rank.

May import: nothing of ours.
Not here: Spark, Horovod, Petastorm; writing a dataset (spark_jobs/etl).
"""
