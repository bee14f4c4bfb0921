"""Column expressions: splits, labels, derived values. No session, no data.

May import: conf, pipelines/data/dataset.
Not here: reading and writing.
"""
