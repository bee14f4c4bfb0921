"""PEP 517 backend: the published Petastorm 0.13.1 wheel, mended for pyarrow 14 to 26, NumPy 2, pandas 3 and Python 3.12 to 3.14.

Holds no Petastorm source: it fetches the published wheel, checks its SHA-256, applies ``edits.py``, adds ``legacy_parquet.py``,
and packs the files again with a build tag that tells the two wheels apart.

    uv build --wheel --out-dir dist third_party/petastorm   # leaves the wheel in dist/ (what `make wheels` does)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from edits import PRODUCT, REQUIREMENTS, TESTS

VERSION = "0.13.1"
WHEEL_SHA256 = "7d073f01f65ba6b50e05fae8254d0f469881bcaf41ead2028e676517c45bbd1b"
BUILD = "2sparkring"  # pip prefers it to the published wheel, which has none, and to 1sparkring
NOTICE = "# Changed by sparkring's third_party/petastorm/edits.py.\n"
"""First line of each changed file: the licence (Apache-2.0, section 4 b) asks for it."""

Settings = dict[str, str | list[str]] | None  # what a frontend may pass to a hook; none is read here


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """PEP 517 hook: what fetches a wheel, opens it and packs it again."""
    return ["pip", "wheel"]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """PEP 517 hook: leave the mended wheel in ``wheel_directory`` and return its file name."""
    with tempfile.TemporaryDirectory(prefix="petastorm-build-") as folder:
        work = Path(folder)
        wanted = work / "wanted.txt"
        wanted.write_text(f"petastorm=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes",
                        "--dest", folder, "--requirement", str(wanted)], check=True)
        (published,) = work.glob("petastorm-*.whl")
        subprocess.run([sys.executable, "-m", "wheel", "unpack", "--dest", str(work / "open"), str(published)], check=True)
        (tree,) = (work / "open").iterdir()
        mend(tree)
        subprocess.run([sys.executable, "-m", "wheel", "pack", "--build-number", BUILD, "--dest-dir", wheel_directory, str(tree)],
                       check=True)
    (packed,) = Path(wheel_directory).glob(f"petastorm-{VERSION}-{BUILD}-*.whl")
    return packed.name


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """PEP 517 hook that has no meaning here: the published wheel is the source."""
    raise RuntimeError("third_party/petastorm only builds wheels; Petastorm's source is the one on the package index.")


def mend(tree: Path) -> None:
    """Apply the edits to an unpacked wheel, add our module and write the new requirements."""
    for name, old, new in (*PRODUCT, *TESTS):
        _replace(tree / name, old, new)
    for name in {name for name, _, _ in (*PRODUCT, *TESTS)}:
        file = tree / name
        file.write_text(NOTICE + file.read_text(encoding="utf-8"), encoding="utf-8")
    module = Path(__file__).with_name("legacy_parquet.py").read_text(encoding="utf-8")
    (tree / "petastorm" / "legacy_parquet.py").write_text(module, encoding="utf-8")
    for old, new in REQUIREMENTS:
        _replace(tree / f"petastorm-{VERSION}.dist-info" / "METADATA", f"{old}\n", f"{new}\n" if new else "")


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    if old not in text:
        raise SystemExit(f"{file.name} does not say {old!r}; this recipe does not fit this wheel.")
    file.write_text(text.replace(old, new), encoding="utf-8")
