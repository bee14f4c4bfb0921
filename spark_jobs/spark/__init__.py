"""Spark itself: the session, its slots, a job under watch, its errors; and how a job reports progress.

May import: conf, the rooms inside.
Not here: anything about rows or ranks.
"""
