"""Messages between two ranks of a ring, by shared memory, Gloo or Horovod, behind one interface.

May import: conf/schema, pipelines/parallel, pipelines/parallel/shared_memory, pipelines/parallel/collectives.
Not here: what is sent, and when (stages).
"""
