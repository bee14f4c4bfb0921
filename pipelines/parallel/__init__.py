"""The place of each rank: identity, mesh, process sets that Horovod can start; and its device's clock and copies.

May import: conf/schema.
Not here: anything that talks to another rank (the rooms inside).
"""
