"""Operations of several ranks: agree, gather, broadcast, and sum gradients, within a host and between hosts.

May import: pipelines/parallel, pipelines/parallel/shared_memory.
Not here: messages between two ranks (transports).
"""
