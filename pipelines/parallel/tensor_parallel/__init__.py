"""Tensor parallelism: each rank of a set holds a slice of a layer's weights.

May import: models, pipelines/parallel/collectives.
Not here: which layers are sharded (the config's layout).

    x (all) -> f -> [ column linear: own outputs ] -> gelu / own heads -> [ row linear: own inputs ] -> g -> y (all)

``f`` does nothing forward and sums gradients over the shards backward; ``g`` sums forward and does nothing backward. So a
pair of linear layers, attention by heads, and the vocabulary cost one sum each way. Parameters that are not cut (norms,
positions) are held by every shard and get the same gradient on each.

    functions.py     f and g
    shard_spec.py    which slice of a tensor each shard holds
    linear.py        column and row linear layers
    vocabulary.py    embedding, logits and cross entropy over a cut vocabulary
    sharding.py      from a model's blocks to one shard's blocks

Source: Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism", 2019, section 3.
"""
