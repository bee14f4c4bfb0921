"""Process sets across hosts are refused with a Horovod that may never start them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkring.errors import LayoutRefused
from sparkring.pipelines.parallel.collectives.sets_across_hosts import require_startable
from sparkring.pipelines.parallel.mesh import Ranks, process_sets

HOSTS = (0, 0, 1, 1)


@pytest.mark.parametrize(("metadata", "sets", "refused"), [
    pytest.param('{"kind": "cpu"}', [(1, 2, 3)], False, id="ours"),
    pytest.param('{"dummy": "none"}', [(1, 2, 3)], True, id="as published"),
    pytest.param(None, [(1, 2, 3)], True, id="of an unknown build"),
    pytest.param('{"dummy": "none"}', [(0, 1), (2, 3)], False, id="each set on one host"),
    pytest.param('{"dummy": "none"}', list(process_sets(HOSTS)), False, id="those of data parallelism"),
])
def test_sets_across_hosts_need_our_build_of_horovod(tmp_path: Path, metadata: str | None, sets: list[Ranks], refused: bool) -> None:
    if metadata:
        (tmp_path / "metadata.json").write_text(metadata, encoding="utf-8")
    if refused:
        with pytest.raises(LayoutRefused, match=r"needs the process set \[1, 2, 3\] across hosts.*; install the wheel of `make wheels`"):
            require_startable(sets, HOSTS, horovod=tmp_path)
    else:
        require_startable(sets, HOSTS, horovod=tmp_path)
