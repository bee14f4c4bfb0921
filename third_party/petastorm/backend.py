"""PEP 517 backend: the published Petastorm 0.13.1 wheel with one line of its metadata changed.

Petastorm declares ``setuptools<70`` and torch declares ``setuptools>=77.0.3``, so pip finds no set of versions that
holds both, although the code runs with 80. Holds no Petastorm source: it fetches the published wheel, checks its
SHA-256, loosens that one requirement and packs the same files again, with a build tag that tells the two apart.

    uv build --wheel --out-dir dist third_party/petastorm   # leaves the wheel in dist/ (what `make wheels` does)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "0.13.1"
WHEEL_SHA256 = "7d073f01f65ba6b50e05fae8254d0f469881bcaf41ead2028e676517c45bbd1b"
OLD, NEW = "Requires-Dist: setuptools<70", "Requires-Dist: setuptools<81"

Settings = dict[str, str | list[str]] | None  # what a frontend may pass to a hook; none is read here


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """PEP 517 hook: what fetches a wheel, opens it and packs it again."""
    return ["pip", "wheel"]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """PEP 517 hook: leave the changed wheel in ``wheel_directory`` and return its file name."""
    with tempfile.TemporaryDirectory(prefix="petastorm-build-") as folder:
        work = Path(folder)
        wanted = work / "wanted.txt"
        wanted.write_text(f"petastorm=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes",
                        "--dest", folder, "--requirement", str(wanted)], check=True)
        (published,) = work.glob("petastorm-*.whl")
        subprocess.run([sys.executable, "-m", "wheel", "unpack", "--dest", str(work / "open"), str(published)], check=True)
        (tree,) = (work / "open").iterdir()
        metadata = tree / f"petastorm-{VERSION}.dist-info" / "METADATA"
        text = metadata.read_text(encoding="utf-8")
        if OLD not in text:
            raise SystemExit(f"{metadata.name} does not say {OLD!r}; this recipe does not fit this wheel.")
        metadata.write_text(text.replace(OLD, NEW), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "wheel", "pack", "--build-number", "1sparkring", "--dest-dir", wheel_directory,
                        str(tree)], check=True)
    (packed,) = Path(wheel_directory).glob(f"petastorm-{VERSION}-1sparkring-*.whl")
    return packed.name


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """PEP 517 hook that has no meaning here: the published wheel is the source."""
    raise RuntimeError("third_party/petastorm only builds wheels; Petastorm's source is the one on the package index.")
