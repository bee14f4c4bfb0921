"""Packages of this environment, linked into a new one: installing 6 GB that are here already would be most of a test's time.

    link_packages(site, {"torch": "2.13.0", ...})       those that are installed here in exactly these versions

File by file, in folders of their own, so that nothing that is installed there later can change what is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from importlib.util import cache_from_source
from pathlib import Path
from sysconfig import get_path

HERE = Path(get_path("purelib"))


def link_packages(site: Path, wanted: Mapping[str, str], *, without: Iterable[str] = ()) -> set[str]:
    """Link installed packages.

    Args:
        site: The new environment's ``site-packages``.
        wanted: Normalised name -> version.
        without: Names that are left out.
    Returns:
        The names of those that are linked.
    """
    linked = set()
    for distribution in distributions(path=[str(HERE)]):
        name = normalised(distribution.metadata["Name"])
        if wanted.get(name) == distribution.version and name not in set(without):
            _link(distribution, site)
            linked.add(name)
    return linked


def normalised(name: str) -> str:
    """A package's name as indexes compare them."""
    return name.lower().replace("_", "-").replace(".", "-")


def _link(distribution: Distribution, site: Path) -> None:
    for file in distribution.files or ():
        source = HERE / file
        if ".." in file.parts or not source.is_file():
            continue  # a script, which would start this environment's Python
        for each in filter(Path.is_file, (source, Path(cache_from_source(str(source))))):
            target = site / each.relative_to(HERE)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(each)
