"""WHAT is trained: plain torch modules. Imports neither pyspark nor horovod."""

if not __name__.startswith("sparkring."):
    raise ImportError("import sparkring.models, not models: two copies of one module would disagree (docs/adr/0001)")
