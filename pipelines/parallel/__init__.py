"""Which rank does what: a rank's identity, the mesh laid over all ranks, and which process sets Horovod can start. Pure.

May import: nothing of ours.
Not here: anything that talks to another rank (the rooms inside).
"""
