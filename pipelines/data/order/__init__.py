"""The row order: which rows make a step, which rank reads them, and the receipts that prove it. Pure arithmetic.

May import: pipelines/data/dataset.
Not here: reading rows.
"""
