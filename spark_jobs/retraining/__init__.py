"""How a candidate compares with the champion, and whether it takes its place.

May import: conf.
Not here: the aliases (spark_jobs/registry).
"""
