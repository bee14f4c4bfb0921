"""What tests and benchmarks both need: ranks without Spark, and small datasets. It is in no package.

May import: everything of the product.
Not here: what only tests (tests/support) or only benchmarks need; assertions of either.
"""
