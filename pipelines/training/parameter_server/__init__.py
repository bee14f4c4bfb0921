"""A parameter server on ranks of the ring: who takes which step, how stale an update may be, and the served weights.

May import: conf, pipelines/parallel, pipelines/parallel/transports.
Not here: gradients and steps (strategies/relaxed/stale_sync.py), positions and events (loop).
"""
