"""The check before the first step: no rank begins unless every file that the run will read is the committed one.

Each rank checks the footers of its share of the files; then all ranks share their findings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from sparkring.errors import DatasetChanged
from sparkring.pipelines.data.dataset.integrity import Mismatch, check_footers
from sparkring.pipelines.data.dataset.versions import DatasetVersion
from sparkring.pipelines.parallel.collectives.communicator import Communicator


def require_committed_files(communicator: Communicator, version: DatasetVersion, *, splits: Sequence[str]) -> None:
    """Check all files of ``splits`` by size and footer, spread over the ranks.

    Raises:
        DatasetChanged: on every rank, if some rank found a file that the manifest does not describe; it is named.
    """
    context, dataset, manifest = communicator.context, version.dataset, version.manifest
    files = [file for split in splits for file in manifest.splits[split].files]
    mine = check_footers(dataset.store, manifest, files[context.rank::context.size])
    lines = "".join(json.dumps([mismatch.path, mismatch.text]) + "\n" for mismatch in mine).encode()
    found = communicator.gather(torch.tensor(list(lines), dtype=torch.uint8), name="start.files")
    mismatches = [Mismatch(*json.loads(line)) for line in found.numpy().tobytes().splitlines()]
    if mismatches:
        raise DatasetChanged(dataset.url, version=manifest.version, findings=list(map(str, mismatches)))
