"""Networks of other libraries made exact and cut into blocks: ``adapt``.

May import: models.
Not here: which networks there are by name (models/catalogue).
"""

if not __name__.startswith("sparkring."):
    raise ImportError("import sparkring.models.adapting, not models.adapting: two copies of one module would disagree (docs/adr/0001)")
