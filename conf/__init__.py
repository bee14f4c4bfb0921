"""What to run: the typed config and the YAML files that are shipped.

May import: the rooms inside.
Not here: what a key does (see the room that reads it).
"""

if not __name__.startswith("sparkring."):
    raise ImportError("import sparkring.conf, not conf: two copies of one module would disagree (docs/adr/0001)")
