"""Checkpoints: their files, when one is begun, writing beside training, and which ones count.

May import: pipelines/data/stores, pipelines/parallel/shared_memory, pipelines/parallel/collectives.
Not here: what the tensors mean (strategies/state.py).
"""
