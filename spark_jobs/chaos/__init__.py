"""A user's own job under faults on purpose: what is struck and when, the rank that strikes itself, what it cost."""
