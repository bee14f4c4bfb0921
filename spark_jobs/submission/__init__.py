"""Jobs on a cluster: a Python environment packed for it, and the arguments of spark-submit.

May import: conf, pipelines/data/stores.
Not here: the jobs themselves.
"""
