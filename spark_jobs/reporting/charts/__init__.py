"""Pictures drawn from facts, as SVG.

May import: pipelines, spark_jobs/explaining, spark_jobs/reporting/facts.
Not here: reading files.
"""
