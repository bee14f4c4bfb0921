"""Names of the tensors that models take. Datasets give their tensors the same names. Does not load torch.

    kind       input           shape           type
    tabular    numeric         (B, F)          the run's float type
               categorical     (B, C)          int64
    image      image           (B, C, H, W)    the run's float type
    text       tokens          (B, T)          int64; of next_token the label, too
    any        row_seeds       (B,)            int64; of a model with dropout, derived from the row ids
"""

from __future__ import annotations

NUMERIC, CATEGORICAL = "numeric", "categorical"
IMAGE = "image"
TOKENS = "tokens"
"""Also the name of the dataset's column."""
ROW_SEEDS = "row_seeds"
"""Random bits of each row, which blocks with dropout read beside their input (``dropout.py``)."""
