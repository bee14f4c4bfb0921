"""Memory that the ranks of one host share: segments, buffers, and rounds of exchange.

May import: pipelines/parallel, pipelines/data/loading.
Not here: sums (collectives), messages (transports).
"""
