"""Process sets across hosts, which Horovod as published cannot always start.

Under Gloo some sets wait until a timeout, depending on which hosts their members are on (trap T6 in docs/explanation/horovod-traps.md).
The build of third_party/horovod is mended and leaves a mark in Horovod's ``metadata.json``; without the mark they are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from sparkring.errors import LayoutRefused
from sparkring.pipelines.parallel.mesh import Ranks, canonical_sets, process_sets


def require_startable(sets: Iterable[Ranks], hosts: Sequence[int], *, horovod: Path) -> None:
    """Refuse process sets that the installed Horovod may wait for in vain.

    Args:
        sets: The process sets of a layout. Those of plain data parallelism start with every Horovod.
        hosts: Host number of each rank.
        horovod: Folder of Horovod's package.
    Raises:
        LayoutRefused: one has members on several hosts, and Horovod is not built by third_party/horovod.
    """
    asked = set(canonical_sets(sets, size=len(hosts))) - set(process_sets(hosts))
    across = sorted(ranks for ranks in asked if len({hosts[rank] for rank in ranks}) > 1)
    if across and not _is_mended(horovod):
        raise LayoutRefused(f"the layout needs the process set {list(across[0])} across hosts, and the Horovod in {horovod} is not built "
                            "by third_party/horovod, so it may never start; install the wheel of `make wheels`, or train without stages "
                            "and shards, or on one host.")


def _is_mended(horovod: Path) -> bool:
    try:
        return "kind" in json.loads((horovod / "metadata.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
