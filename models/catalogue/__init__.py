"""Networks by name, for ``model.network``: small ones of our own, and those of torchvision, timm and transformers.

May import: models, models/adapting.
Not here: which names there are (models/networks.py); how a foreign network is made exact (models/adapting).
"""

if not __name__.startswith("sparkring."):
    raise ImportError("import sparkring.models.catalogue, not models.catalogue: two copies of one module would disagree (docs/adr/0001)")
