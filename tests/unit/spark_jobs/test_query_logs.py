"""PySpark's loggers of failed queries are quiet while a job runs, and afterwards as they were."""

from __future__ import annotations

import logging

import pytest

from sparkring.spark_jobs.spark.errors import failed_queries_unlogged
from tests.support import seams


@pytest.mark.parametrize("before", [False, True], ids=["they wrote before", "they were quiet before"])
def test_of_blocks_that_overlap_the_last_one_restores_the_loggers(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    logger = logging.getLogger("one of PySpark's")
    monkeypatch.setattr(logger, "disabled", before)
    monkeypatch.setattr(seams.ERRORS_QUERY_LOGGERS, lambda: [logger])
    first, second = failed_queries_unlogged(), failed_queries_unlogged()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert logger.disabled, "the second block goes on"
    second.__exit__(None, None, None)
    assert logger.disabled == before
