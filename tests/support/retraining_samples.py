"""A workspace after some nights of retraining, with the shape of real figures: for tests of the page and for looking at it."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.manifest import RollingSplit
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.registry.documents import AliasChange, ModelVersion
from sparkring.spark_jobs.retraining.history import Begun, Ended
from tests.support.report_samples import CATEGORICAL, NUMERIC, sample_config, sample_manifest

FIRST = datetime(2026, 1, 5, 3, 0, tzinfo=UTC)
ROLLED_BACK_AFTER = 7
"""The promotion after which a person brings the champion before back."""


def write_nights(workspace: Path, count: int = 10, *, rolling: bool = True, unfinished: bool = False, **manifest: Any) -> Config:
    """Fill ``workspace`` with the documents of ``count`` retrainings, a week apart.

    Args:
        workspace: The folder.
        count: Retrainings that are over.
        rolling: Whether the dataset's split rolls.
        unfinished: Whether one more was begun.
        manifest: Fields of all manifests that are replaced.
    """
    config = sample_config(workspace).changed(run=None)
    history, models, dataset = open_store(f"{workspace}/retrain"), open_store(f"{workspace}/models"), Dataset(config.dataset)
    changes: list[AliasChange] = []
    champion: int | None = None
    for number in range(1, count + 1 + unfinished):
        begun = _begun(number, champion)
        history.put(f"begun/{number}.json", begun.model_dump_json().encode())
        parent = {"parent": number - 1, "parent_sha256": dataset.manifest_sha256(number - 1)} if number > 1 else {}
        dataset.commit(sample_manifest(version=number, rolling=_borders(number) if rolling else None, **parent, **manifest))
        if number > count:
            break
        models.put(f"versions/{number}.json", _version(number, config).model_dump_json().encode())
        ended = ended_of(begun, promoted=champion is None or number % 3 != 0)
        history.put(f"ended/{number}.json", ended.model_dump_json().encode())
        changes.append(_change(changes, "proposed", number, champion, candidate=number, reason=f"trained on dataset version {number}"))
        before, champion = champion, number if ended.outcome == "promoted" else champion
        changes.append(_change(changes, "promoted" if champion == number else "kept", number, champion, reason=ended.reason))
        if number == ROLLED_BACK_AFTER:
            champion = before
            changes.append(_change(changes, "rolled back", before or 0, champion, reason="too many false alarms at Newark"))
    for change in changes:
        models.put(f"aliases/{change.number}.json", change.model_dump_json().encode())
    return config


def _begun(number: int, champion: int | None) -> Begun:
    drifted = ["temp has drifted: stability index 0.412 (trigger: 0.25)"] if number % 4 == 0 else []
    reasons = ("no retraining yet",) if champion is None else (f"{6_300 + 37 * number:,} new rows (trigger: 5,000)", *drifted)
    return Begun(number=number, dataset_version=number, rows=_rows(number), champion=champion, reasons=reasons, at=_at(number),
                 claim=f"{number}")


def ended_of(begun: Begun, *, promoted: bool) -> Ended:
    """The outcome of a retraining."""
    number, first = begun.number, begun.champion is None
    gain = 0.004 + 0.003 * math.sin(2.1 * number) if promoted else -0.006
    loss, auc = 0.43 + 0.02 * math.sin(number / 2), 0.735 + 0.02 * math.sin(number / 3)
    reason = "there was no champion" if first else (
        f"{'not worse' if promoted else 'it may be worse'} by more than 1% of the champion's loss: mean loss {loss:.5f}, the champion's "
        f"{loss + gain:.5f}, gain {gain:+.5f} [{gain - 0.003:+.5f}, {gain + 0.003:+.5f}] on 51,631 held-out rows")
    return Ended(
        number=number, outcome="promoted" if promoted else "kept", reason=reason, dataset_version=begun.dataset_version, rows=begun.rows,
        champion=begun.champion, candidate=number, run=f"v{number}-{number * 7919:08x}", held_out_rows=51_631,
        champion_metrics={} if first else {"loss": loss + gain, "auc": auc - 2 * gain},
        candidate_metrics={"loss": loss, "auc": auc}, gain=None if first else gain, gain_low=None if first else gain - 0.003,
        gain_high=None if first else gain + 0.003, p_value=None if first else 0.01,
        drift={} if first else {name: round(0.4 * abs(math.sin(number * place)) / place, 4)
                                for place, name in enumerate((*NUMERIC, *CATEGORICAL), start=1)},
        began_at=begun.at, at=_at(number, minutes=7 + number))


def _version(number: int, config: Config) -> ModelVersion:
    return ModelVersion(
        version=number, name=config.name, task="binary", run=f"v{number}-{number * 7919:08x}", dataset_url=config.dataset,
        dataset_version=number, content_id="c", weights_sha256=f"{number:064x}", files=(), split="test", rows=51_631,
        metrics={"auc": 0.74}, intervals={}, code_version="0.1.0", created_at=_at(number))


def _change(before: list[AliasChange], act: Any, version: int, champion: int | None, *, reason: str,
            candidate: int | None = None) -> AliasChange:
    return AliasChange(number=len(before) + 1, act=act, version=version, champion=champion, candidate=candidate, reason=reason,
                       at=_at(version, minutes=8 + version))


def _borders(number: int) -> RollingSplit:
    newest = FIRST + timedelta(days=7 * number, hours=-4, minutes=-1)
    return RollingSplit(newest=newest, test_from=newest - timedelta(days=28), validation_from=newest - timedelta(days=56))


def _rows(number: int) -> int:
    return 320_000 + 6_400 * number


def _at(number: int, *, minutes: float = 0) -> str:
    return (FIRST + timedelta(days=7 * number, minutes=minutes)).isoformat(timespec="seconds")
