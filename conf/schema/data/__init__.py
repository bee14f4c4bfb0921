"""The sections about rows: sources, features, splits and expectations; and ``prepare``, which holds them.

May import: conf/schema/base.
Not here: models and training (conf/schema).
"""
