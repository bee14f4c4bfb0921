"""The pages: every link leads somewhere, raw text can be read, and the page of figures is what its script writes."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import typer.core

from sparkring.cli.app import app
from tests.support.rooms import modules

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("third_party/*/README.md")])
EDITED = [page for page in PAGES if not page.name.startswith("2026-")]
"""All but the entries of the log, which stay as they were written."""
MAX_CELL, MAX_LINE = 120, 122


PETASTORM_S = {"unischema.py", "etl/dataset_metadata.py"}
"""Modules of Petastorm that docstrings cite."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def shown(text: str) -> str:
    """What a reader sees of a cell or line: links without their targets."""
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def prose(page: Path) -> list[str]:
    """The lines of a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE).splitlines()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", EDITED, ids=named)
def test_a_table_cell_is_short_enough_to_be_read_raw(page: Path) -> None:
    cells = [cell.strip() for line in prose(page) if line.startswith("|") for cell in shown(line).split("|")]
    assert [cell for cell in cells if len(cell) > MAX_CELL] == []


@pytest.mark.parametrize("page", EDITED, ids=named)
def test_prose_is_wrapped(page: Path) -> None:
    lines = [line for line in prose(page) if not line.startswith(("|", "    ")) and "::test_" not in line]
    assert [line for line in lines if len(shown(line)) > MAX_LINE] == []


@pytest.mark.parametrize("page", EDITED, ids=named)
def test_every_command_of_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    wanted = set(re.findall(r"^(?: {4}(?:\$ )?|- .*`|.*`)sparkring ([a-z]+(?:-[a-z]+)*)\b", text, flags=re.MULTILINE))
    assert wanted <= command.commands.keys()
    programs = {path.stem for path in ROOT.glob("benchmarks/*.py")} | {path.parent.name for path in ROOT.glob("benchmarks/*/__main__.py")}
    assert set(re.findall(r"-m benchmarks\.(\w+)", text)) <= programs


def stale_modules(source: str) -> list[str]:
    """Files ``a/b.py`` that the docstrings of a module name although no room and no test has them."""
    docstrings = [node.value.value for node in ast.walk(ast.parse(source))
                  if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)]
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in (*modules().values(), *ROOT.glob("tests/**/*.py"))]
    cited = {name for text in docstrings for name in re.findall(r"(?<![\w/.*{}-])(?:\w+/)*\w+\.py\b", text)} - PETASTORM_S
    return sorted(name for name in cited if not any(file.endswith(f"/{name}") for file in files))


def test_every_module_that_a_docstring_names_exists() -> None:
    stale = {named(path): stale_modules(path.read_text(encoding="ascii")) for path in modules().values()}
    assert {name: found for name, found in stale.items() if found} == {}
    assert stale_modules('"""See ``data/receipts.py`` and order/receipts.py."""') == ["data/receipts.py"], "the control"


def test_every_page_is_in_the_index_and_in_the_site_s_navigation() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = [page for folder in ("tutorial", "how-to", "reference", "explanation", "studies")
             for page in (ROOT / "docs" / folder).glob("*.md")]
    assert [named(page) for page in pages if f"({page.relative_to(ROOT / 'docs').as_posix()})" not in index] == []
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    in_site = [*pages, *(ROOT / "docs/adr").glob("*.md")]
    assert [named(page) for page in in_site if f" {page.relative_to(ROOT / 'docs').as_posix()}\n" not in site] == []
    log = (ROOT / "docs/log/README.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs/log").glob("2026-*.md") if f"({page.name})" not in log] == []


def test_the_page_of_figures_is_what_its_script_writes() -> None:
    """Run in a copy, so that a stale page fails here and is not mended in passing."""
    program = "import runpy, sys; script = runpy.run_path(sys.argv[1]); sys.stdout.write(script['page'](script['LINES']))"
    written = subprocess.run([sys.executable, "-c", program, str(ROOT / "scripts/figures.py")], check=True, capture_output=True, text=True,
                             timeout=60).stdout
    assert (ROOT / "docs/figures.md").read_text(encoding="utf-8") == written
    for file in (ROOT / "docs/figures").iterdir():
        assert (ROOT / "benchmarks" / f"{file.stem}.py").is_file(), file
        for line in file.read_text(encoding="utf-8").splitlines():
            assert set(json.loads(line)) == {"commit", "date", "figures"}


def test_the_page_of_config_keys_is_what_its_script_writes_and_each_key_has_a_meaning() -> None:
    script = runpy.run_path(str(ROOT / "scripts/config_reference.py"))
    written = script["page"]()
    assert script["PAGE"].read_text(encoding="utf-8") == written, "run `python -m scripts.config_reference`"
    assert re.findall(r"^- .*\):\n(?!  )", written, flags=re.MULTILINE) == []


def test_readme_s_table_of_platforms_is_that_of_the_last_run() -> None:
    program = ("import runpy, sys; script = runpy.run_path(sys.argv[1]); readme = script['README'].read_text(encoding='utf-8'); "
               "sys.stdout.write(script['with_platforms'](readme, script['LINES']))")
    written = subprocess.run([sys.executable, "-c", program, str(ROOT / "scripts/figures.py")], check=True, capture_output=True, text=True,
                             timeout=60).stdout
    assert (ROOT / "README.md").read_text(encoding="utf-8") == written, "run `python scripts/figures.py`"


def test_a_failed_cell_is_bold_and_what_could_not_be_run_says_why(tmp_path: Path) -> None:
    program = ("import pathlib, runpy, sys; script = runpy.run_path(sys.argv[1]); "
               "sys.stdout.write(script['platforms'](pathlib.Path(sys.argv[2])))")
    versions = {"pyspark": "4.0.0", "pyarrow": "19.0.1", "numpy": "2.1.3", "pandas": "2.2.3", "torch": "2.8.0"}
    run = {"platform": "Ours", "python": "3.12", "java": "21", "versions": versions, "seconds": 90, "date": "2026-01-01",
           "differs": ["a: so", "b: so"]}
    figures = {"runs": [{**run, "green": True, "rows": 16811, "auc": 0.7}, {**run, "green": False, "why": "so"}],
               "absent": [{"what": "GPUs", "reason": "none here"}]}
    (tmp_path / "matrix.jsonl").write_text(json.dumps({"figures": figures}) + "\n", encoding="utf-8")
    written = subprocess.run([sys.executable, "-c", program, str(ROOT / "scripts/figures.py"), str(tmp_path)], check=True,
                             capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert written[2] == "| Ours | 3.12 | 21 | 4.0.0 | 19.0.1 | 2.1.3 | 2.2.3 | 2.8.0 | 16,811, 0.7000 | 90 | 2026-01-01 | a: so; b: so |"
    assert written[3] == "| Ours | 3.12 | 21 | 4.0.0 | 19.0.1 | 2.1.3 | 2.2.3 | 2.8.0 | **failed** | 90 | 2026-01-01 | a: so; b: so |"
    assert written[-1] == "| GPUs | none here |"


def test_a_figure_that_misses_its_bar_is_bold(tmp_path: Path) -> None:
    program = ("import pathlib, runpy, sys; script = runpy.run_path(sys.argv[1]); "
               "sys.stdout.write(script['page'](pathlib.Path(sys.argv[2])))")
    line = {"commit": "1234567", "date": "2026-01-01", "figures": {"files_per_s": 999.0}}
    (tmp_path / "scan.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    written = subprocess.run([sys.executable, "-c", program, str(ROOT / "scripts/figures.py"), str(tmp_path)], check=True,
                             capture_output=True, text=True, timeout=60).stdout
    assert written.endswith("| `python -m benchmarks.scan` | files/s checked before a run | **999** | at least 1,000 |  | 1234567 "
                            "| 2026-01-01 |\n")
