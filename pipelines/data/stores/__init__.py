"""Where files lie: one interface over local folders, HDFS, S3 and what fsspec opens, with one atomic commit.

May import: nothing of ours.
Not here: what the files mean.
"""
