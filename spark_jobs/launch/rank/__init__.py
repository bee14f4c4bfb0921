"""One rank process on an executor: how it starts, what it is told, how it ends.

May import: pipelines/parallel.
Not here: other ranks (launch/meeting).
"""
