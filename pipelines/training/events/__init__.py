"""The event stream of a run: writing, sealing and reading it, and findings from it during a run.

May import: pipelines/data.
Not here: pictures and reports (spark_jobs/reporting).
"""
