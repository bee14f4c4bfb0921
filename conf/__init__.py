"""WHAT to run: the typed config (schema/), how it is loaded (loading.py), and the ready YAML files beside them."""

if not __name__.startswith("sparkring."):
    raise ImportError("import sparkring.conf, not conf: two copies of one module would disagree (docs/adr/0001)")
