"""A prompt and a notebook: progress while a cell runs, an interrupt that saves first, and reports in the page.

May import: conf, spark_jobs, sparkring/cli/terminal.
Not here: drawing reports (spark_jobs/reporting), bars of a terminal (sparkring/cli/terminal).
"""
