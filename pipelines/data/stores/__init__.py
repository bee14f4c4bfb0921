"""Storage of files: one interface over local folders, HDFS, S3 and fsspec, with one atomic commit.

May import: nothing of ours.
Not here: the meaning of the files.
"""
