"""From data files to the batches of one rank: read ahead, decode, cache, assemble.

May import: pipelines/data/stores, pipelines/data/dataset, pipelines/data/order.
Not here: the use of a batch.
"""
