"""The studies by name."""

from __future__ import annotations

from benchmarks.studies import large_batches, layouts, ring_and_tree, scaling, staleness
from benchmarks.studies.study import Study

STUDIES: dict[str, Study] = {each.STUDY.name: each.STUDY for each in (large_batches, staleness, ring_and_tree, scaling, layouts)}
