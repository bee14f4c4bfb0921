"""One rank process on an executor: how it starts, gets its order, and ends.

May import: pipelines/parallel.
Not here: other ranks (launch/meeting).
"""
