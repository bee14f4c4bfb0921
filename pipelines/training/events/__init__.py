"""The event stream of a run: writing, sealing and reading it, and what is derived from it while a run goes.

May import: pipelines/data.
Not here: pictures and reports (spark_jobs/reporting).
"""
