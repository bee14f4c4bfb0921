"""Which rows make a step, which of them are mine, and the receipts that prove it. Pure arithmetic.

May import: pipelines/data/dataset.
Not here: reading rows.
"""
