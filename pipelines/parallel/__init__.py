"""Which rank does what: who a rank is, the mesh laid over all ranks, and what Horovod can start. Pure.

May import: nothing of ours.
Not here: anything that talks to another rank (the rooms inside).
"""
