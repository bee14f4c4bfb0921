"""Jobs on a cluster: a Python environment packed for it, and the arguments of spark-submit.

May import: conf.
Not here: the jobs themselves.
"""
