"""The files of a source on this machine: those that Spark reads are those that are hashed, and what cannot be read is named."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import SourceConfig
from sparkring.errors import SourceError
from sparkring.spark_jobs.etl.sources.folders import folder_files, read_folder
from sparkring.spark_jobs.etl.sources.literal_paths import require_readable
from sparkring.spark_jobs.etl.sources.tables import data_files, identify, locate, unpacked

Files = Callable[[Path], list[Path]]
CSV = SourceConfig(path="", columns={"id": "bigint"})


def _images(folder: Path) -> list[Path]:
    return list(folder_files(folder, SourceConfig(path="", format="images")))


def _write(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"id\n{name}\n")


def _no_session() -> SparkSession:
    raise AssertionError("Spark is not needed")


def test_spark_s_data_files_are_those_behind_links_too_and_partitions_whose_column_begins_with_an_underscore(tmp_path: Path) -> None:
    _write(tmp_path / "elsewhere", "b.csv")
    _write(tmp_path / "table", "a.csv", "_day=0/c.csv", ".x=1/d.csv", "_tmp/e.csv", "_SUCCESS", "f.csv._COPYING_")
    (tmp_path / "table/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "table/c").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "table/gone.csv").symlink_to(tmp_path / "nowhere")
    found = [file.relative_to(tmp_path / "table").as_posix() for file in data_files(tmp_path / "table")]
    assert found == ["_day=0/c.csv", "a.csv", "b/b.csv", "c/b.csv"]


def test_a_class_whose_folder_is_a_link_is_one_of_the_classes(tmp_path: Path) -> None:
    _write(tmp_path / "elsewhere", "1.png")
    _write(tmp_path / "images", "dog/2.png", "notes.txt", ".hidden/3.png")
    (tmp_path / "images/cat").symlink_to(tmp_path / "elsewhere")
    assert [file.relative_to(tmp_path / "images").as_posix() for file in _images(tmp_path / "images")] == ["cat/1.png", "dog/2.png"]


@pytest.mark.parametrize("files", [pytest.param(data_files, id="data"), pytest.param(_images, id="images")])
def test_folders_without_an_end_are_refused(tmp_path: Path, files: Files) -> None:
    _write(tmp_path, "a/1.png", "b/2.png")
    (tmp_path / "a/b").symlink_to(tmp_path / "b")
    assert len(files(tmp_path)) == 3
    (tmp_path / "b/a").symlink_to(tmp_path / "a")
    with pytest.raises(SourceError, match=r"a/b/a links to a folder that it lies in, so its files have no end; remove the link\.$"):
        files(tmp_path)


@pytest.mark.parametrize("files", [pytest.param(data_files, id="data"), pytest.param(_images, id="images")])
def test_a_folder_that_may_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Files) -> None:
    _write(tmp_path, "1.png", "closed/2.png")
    scandir = os.scandir

    def refusing(folder: str | Path) -> object:
        if Path(folder).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(SourceError, match=r"closed cannot be read: Permission denied; check that"):
        files(tmp_path)


def test_a_source_that_the_system_does_not_look_at_is_named() -> None:
    with pytest.raises(SourceError, match=r"x cannot be read: File name too long; check that"):
        locate("table", SourceConfig(path="/" + 300 * "x", columns={"id": "bigint"}))


def test_a_file_that_is_gone_when_it_is_read_is_named(tmp_path: Path) -> None:
    _write(tmp_path, "a.csv")
    source = locate("table", CSV.model_copy(update={"path": str(tmp_path / "a.csv")}))
    (tmp_path / "a.csv").unlink()
    with pytest.raises(SourceError, match=r"a\.csv cannot be read: No such file"):
        identify(source, _no_session)


def test_a_name_that_is_not_utf_8_counts_and_is_refused_before_spark_passes_over_it(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.png")
    file.write_text("id\n1\n")
    config = SourceConfig(path=str(tmp_path), format="images")
    assert identify(locate("table", config), _no_session)["bytes"] == 5
    for refuse in (lambda: require_readable("table", file),
                   lambda: read_folder(cast(SparkSession, None), "table", config, tmp_path, cache=tmp_path)):
        with pytest.raises(SourceError, match=r"Spark cannot open '.*caf\\udce9\.png', since this is not UTF-8; rename"):
            refuse()


def _damaged(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-9])


def _bad_content(archive: Path) -> None:
    data = archive.read_bytes()
    archive.write_bytes(data.replace(b"id,name", b"di,name"))


def _encrypted(archive: Path) -> None:
    data = bytearray(archive.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags, in both headers
        data[data.index(mark) + place] |= 1
    archive.write_bytes(data)


@pytest.mark.parametrize(("damage", "found"), [
    pytest.param(_damaged, "File is not a zip file", id="cut off"),
    pytest.param(lambda archive: archive.write_bytes(b""), "File is not a zip file", id="empty"),
    pytest.param(_bad_content, "Bad CRC-32", id="other bytes"),
    pytest.param(_encrypted, "is encrypted", id="encrypted")])
def test_an_archive_that_cannot_be_unpacked_is_named(tmp_path: Path, damage: Callable[[Path], object], found: str) -> None:
    archive = tmp_path / "table.csv.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("table.csv", "id,name\n1,x\n")
    damage(archive)
    with pytest.raises(SourceError, match=rf"table\.csv\.zip cannot be unpacked: .*{found}.*; get the file again"):
        unpacked(archive, tmp_path / "cache")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != archive]
