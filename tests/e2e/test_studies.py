"""Each study, as small as possible, from its runs to its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.studies.catalogue import STUDIES
from benchmarks.studies.study import Study, measured, write

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_a_study_measures_and_makes_its_page_with_pictures(study: Study, tmp_path: Path) -> None:
    write(study, measured(study, quick=True), tmp_path)
    page = (tmp_path / f"{study.name}.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\(([\w-]+\.svg)\)", page)
    assert pictures
    assert {path.name for path in tmp_path.iterdir()} == {f"{study.name}.md", f"{study.name}.json", *pictures}
    assert all("<path" in (tmp_path / name).read_text(encoding="utf-8") for name in pictures)
