"""What is trained: plain torch modules, each as a list of blocks that can be cut into stages.

May import: conf.
Not here: ranks, data, optimizers.
"""

if not __name__.startswith("sparkring."):
    raise ImportError("import sparkring.models, not models: two copies of one module would disagree (docs/adr/0001)")
