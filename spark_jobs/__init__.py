"""The jobs: one module for each command that a user submits, and the rooms that these share.

May import: conf, models, pipelines, the rooms inside.
Not here: options and output of the command line (sparkring/cli).
"""

if not __name__.startswith("sparkring."):
    raise ImportError("import sparkring.spark_jobs, not spark_jobs: two copies of one module would disagree (docs/adr/0001)")
