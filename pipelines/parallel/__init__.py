"""The place of each rank: its identity, the mesh laid over all ranks, and the process sets that Horovod can start. Pure, but for a
rank's device: its clock, and copies between it and the host.

May import: conf/schema.
Not here: anything that talks to another rank (the rooms inside).
"""
