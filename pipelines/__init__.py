"""HOW it trains: all that runs on a rank (data, parallel, training). Imports no pyspark."""

if not __name__.startswith("sparkring."):
    raise ImportError("import sparkring.pipelines, not pipelines: two copies of one module would disagree (docs/adr/0001)")
