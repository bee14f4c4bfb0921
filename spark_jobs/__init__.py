"""WHERE it runs: what a user submits to Spark, and the launcher of the ring."""

if not __name__.startswith("sparkring."):
    raise ImportError("import sparkring.spark_jobs, not spark_jobs: two copies of one module would disagree (docs/adr/0001)")
