"""What a dataset version is: its manifest, its fitted preprocessing, and whether its files are the committed ones.

May import: conf, pipelines/data/stores.
Not here: rows and their order.
"""
