"""How a model trains: all that runs on a rank.

May import: nothing of ours.
Not here: Spark.
"""

if not __name__.startswith("sparkring."):
    raise ImportError("import sparkring.pipelines, not pipelines: two copies of one module would disagree (docs/adr/0001)")
