"""The registry on a local store: numbers, aliases, and what happens to two writers and to touched files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sparkring.errors import CommitConflict, ModelVersionNotFound, RegistryChanged
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.spark_jobs.registry.registry import Registry, file_facts
from tests.support import seams


def facts(workspace: Path, run: str, *, weights: bytes = b"weights") -> dict[str, Any]:
    """What a run's model registers; its one file is written."""
    file = workspace / "runs" / run / "model" / "model.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(weights)
    described = file_facts(weights, name="model/model.json")
    return {"name": "flights", "task": "binary", "run": run, "dataset_url": "d", "dataset_version": 1, "content_id": "c",
            "weights_sha256": described.sha256, "files": (described,), "split": "test", "rows": 10, "metrics": {"auc": 0.7},
            "intervals": {"auc": (0.7, 0.6, 0.8)}, "code_version": "1"}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(str(tmp_path))


def test_a_model_keeps_its_number_and_another_model_gets_the_next(registry: Registry, tmp_path: Path) -> None:
    first = registry.register(facts(tmp_path, "v1-a"))
    assert first.version == 1
    assert registry.register(facts(tmp_path, "v1-a")) == first
    assert registry.register(facts(tmp_path, "v1-b")).version == 2
    assert registry.versions() == [1, 2]
    assert registry.version("1").intervals["auc"] == (0.7, 0.6, 0.8)


def test_a_rollback_brings_back_the_champion_before_and_the_next_one_the_champion_before_that(registry: Registry, tmp_path: Path) -> None:
    for run in "abc":
        registry.promote(registry.register(facts(tmp_path, run)).version, reason="better")
    assert registry.aliases().champion == 3
    assert registry.rollback(reason="late").champion == 2
    assert registry.rollback(reason="later").champion == 1
    with pytest.raises(ModelVersionNotFound, match="no model version champion before the present one, it has 1, 2, 3; see"):
        registry.rollback(reason="latest")
    registry.promote(3, reason="mended")
    assert registry.rollback(reason="no").champion == 1
    assert [change.act for change in registry.history()] == ["promoted"] * 3 + ["rolled back"] * 2 + ["promoted", "rolled back"]


def test_a_candidate_is_promoted_or_the_champion_is_kept(registry: Registry, tmp_path: Path) -> None:
    for run in "ab":
        registry.register(facts(tmp_path, run))
    registry.promote(1, reason="first")
    registry.propose(2, reason="new rows")
    assert registry.version("candidate").version == 2
    assert registry.version("champion").version == 1
    kept = registry.keep(reason="not better")
    assert (kept.champion, kept.candidate, kept.version, kept.act) == (1, None, 2, "kept")
    registry.propose(2, reason="again")
    promoted = registry.promote("candidate", reason="better")
    assert (promoted.champion, promoted.candidate) == (2, None)
    with pytest.raises(ModelVersionNotFound, match="no model version candidate"):
        registry.version("candidate")


def test_of_two_promotions_at_once_one_wins_and_the_other_is_refused(registry: Registry, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    for run in "abc":
        registry.register(facts(tmp_path, run))
    registry.promote(1, reason="first")
    both_have_read = threading.Barrier(2)
    verify = Registry.verify
    monkeypatch.setattr(seams.REGISTRY_VERIFY, lambda self, version: (verify(self, version), both_have_read.wait(timeout=30)))
    refused: list[str] = []

    def promote(version: int) -> None:
        try:
            Registry(str(tmp_path)).promote(version, reason=f"I want {version}")
        except CommitConflict as conflict:
            refused.append(str(conflict))

    threads = [threading.Thread(target=promote, args=(version,)) for version in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(refused) == 1
    assert "changed by another process just now; look with" in refused[0]
    assert [change.reason for change in registry.history()] == ["first", f"I want {registry.aliases().champion}"]


def test_registering_at_once_gives_each_model_one_number(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LocalStore.put_if_absent
    rivals = iter([Registry(str(tmp_path))])

    def after_a_rival(self: LocalStore, name: str, data: bytes) -> None:
        for rival in rivals:
            rival.register(facts(tmp_path, "rival"))
        put(self, name, data)

    monkeypatch.setattr(seams.LOCAL_STORE_PUT_IF_ABSENT, after_a_rival)
    assert registry.register(facts(tmp_path, "mine")).version == 2
    assert [registry.version(number).run for number in registry.versions()] == ["rival", "mine"]


def test_a_model_whose_files_were_touched_is_not_promoted(registry: Registry, tmp_path: Path) -> None:
    registry.register(facts(tmp_path, "a"))
    (tmp_path / "runs/a/model/model.json").write_bytes(b"other")
    with pytest.raises(RegistryChanged, match=r"model version 1 in .* has changed: model/model\.json has SHA-256 .*, registered was .*; "):
        registry.promote(1, reason="better")
    (tmp_path / "runs/a/model/model.json").unlink()
    with pytest.raises(RegistryChanged, match=r"model/model\.json is missing; restore"):
        registry.promote(1, reason="better")
    assert registry.aliases().champion is None
    assert registry.history() == []
