"""Dataset versions: the manifest, the fitted preprocessing, and checks that files are the committed ones.

May import: conf, models, pipelines/data/stores.
Not here: rows and their order.
"""
