"""Spark itself: the session, its slots, one watched job, its errors; and the progress that a job reports.

May import: conf.
Not here: anything about rows or ranks.
"""
