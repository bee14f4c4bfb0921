"""What mkdocs does beyond docs/ for the site (mkdocs.yml names this file; `make docs` runs it). Imports nothing of ours.

Pages are written to be read in the checkout too, so they link to files beside docs/. In the site each such link has a page:

    README.md                           the home page
    CHANGELOG.md and others             project/
    a source file that a page links     source/, as it is
    sparkring.__all__                   reference/api.md, from the docstrings
    a folder                            its README, its package, or no link

A link that leads nowhere then fails the build, which is strict.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "build/docs-package"
"""The checkout laid out as the package that it becomes, for mkdocstrings (docs/adr/0001-import-layout.md)."""
API = "reference/api.md"
PLACES = {
    "README.md": "index.md", "docs/README.md": "contents.md", "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md", "SECURITY.md": "project/security.md",
    "third_party/horovod/README.md": "project/horovod.md", "third_party/petastorm/README.md": "project/petastorm.md",
    "docs/adr": "adr/index.md", "sparkring/__init__.py": API,
}
"""Files of the checkout that have another place in the site."""
LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
CODE = re.compile(r"^(?P<fence> *```).*?^(?P=fence)$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
WITHOUT = {"index.md": ["navigation"], "figures.md": ["toc"]}
"""Sidebars that a page does without."""
SECTION = re.compile(r"^ +(Args|Returns|Yields|Raises):$", re.MULTILINE)
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".sh": "bash", ".md": "markdown", ".jsonl": "json", ".json": "json"}


def on_startup(**_: object) -> None:
    """Copy the package, with the blank line before each section of a docstring that mkdocstrings needs to tell it apart.

    Before anything is configured, since folders that are not there yet are left out of its search; and copied, since it follows no links.
    """
    shutil.rmtree(PACKAGE, ignore_errors=True)
    for room in ("sparkring", "conf", "models", "pipelines", "spark_jobs"):
        place = PACKAGE / "sparkring" / ("" if room == "sparkring" else room)
        shutil.copytree(ROOT / room, place, ignore=shutil.ignore_patterns("__pycache__"))
    for module in PACKAGE.rglob("*.py"):
        module.write_text(SECTION.sub(r"\n\g<0>", module.read_text(encoding="utf-8")), encoding="utf-8")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    docs = {f"docs/{file.src_uri}": file.src_uri for file in files}
    files.remove(files.src_uris["README.md"])
    written = [path for path in (*PLACES, *docs) if path.endswith(".md") and (ROOT / path).is_file()]
    sources = sorted({path for page in written for path in _linked(page)} - {*PLACES, *docs})
    for path, place in PLACES.items():
        if (ROOT / path).is_file() and place != API:
            files.append(File.generated(config, place, content=(ROOT / path).read_text(encoding="utf-8")))
    for path in sources:
        files.append(File.generated(config, _place(path), content=_source_page(path)))
    files.append(File.generated(config, PLACES["docs/adr"], content=_decisions()))
    files.append(File.generated(config, API, content=_api()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 (mkdocs calls it by name)
    """Lead links to files of the checkout to their pages."""
    here = page.file.src_uri
    page.meta.setdefault("hide", WITHOUT.get(here, []))
    if here.startswith("source/") or here in (API, PLACES["docs/adr"]):
        return markdown
    path = next((path for path, place in PLACES.items() if place == here), f"docs/{here}")
    code = list(CODE.finditer(markdown))

    def led(found: re.Match[str]) -> str:
        if "://" in found["target"] or any(span.start() < found.start() and found.end() < span.end() for span in code):
            return found[0]
        target = _resolved(path, found["target"]) if found["target"] else path
        place = _place(target)
        if place is None:
            return found["text"][1:-1]
        return f"{found['text']}({posixpath.relpath(place, posixpath.dirname(here) or '.')}{found['anchor'] or ''})"

    return LINK.sub(led, markdown)


def _linked(page: str) -> Iterator[str]:
    """Files of the checkout that a page links to and that become pages of their own."""
    for found in LINK.finditer((ROOT / page).read_text(encoding="utf-8")):
        if "://" not in found["target"] and found["target"]:
            target = _resolved(page, found["target"])
            if (ROOT / target).is_file() and not target.startswith("docs/"):
                yield target


def _resolved(page: str, target: str) -> str:
    """The path in the checkout that a link of a page leads to; of a folder, the file that stands for it."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if (ROOT / path).is_dir() and path not in PLACES:
        return next((f"{path}/{name}" for name in ("README.md", "__init__.py") if (ROOT / path / name).is_file()), path)
    return path


def _place(path: str) -> str | None:
    """The page of a file; None for a folder that nothing stands for."""
    if path in PLACES:
        return PLACES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/") if (ROOT / path).is_file() or not (ROOT / path).exists() else None
    return None if (ROOT / path).is_dir() else f"source/{path}.md"


def _source_page(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`{3,}", text)), default=3))
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n# {path}\n\n{fence}{language}\n{text}\n{fence}\n"


def _decisions() -> str:
    """The list of design decisions, by their titles."""
    pages = sorted((ROOT / "docs/adr").glob("*.md"))
    titles = {page.name: page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages}
    return "\n".join(["# Design decisions", "", "One page a decision: what it answers, what was chosen, and what that costs.", "",
                      *(f"- [{title}]({name})" for name, title in titles.items()), ""])


def _api() -> str:
    """The page of the public functions, what they return, and the errors."""
    front = ast.parse((ROOT / "sparkring/__init__.py").read_text(encoding="utf-8"))
    homes = next(ast.literal_eval(node.value) for node in front.body if isinstance(node, ast.Assign) and _names(node) == ["_HOME"])
    results = [f"{home}.{name}" for home in dict.fromkeys(homes.values()) for name in _classes(home) if name.endswith("Result")]
    return "\n".join([
        "# Python API", "",
        "The public functions; all else may move. `import sparkring` loads neither torch nor pyspark: each function loads what it needs.",
        "", "A config is what `load_config` takes: a name, the path of a YAML file, a mapping, or a loaded config. Keywords of a function",
        "that are not its own are [keys of the config](config.md). At a prompt and in a notebook long functions show their progress.", "",
        "## Functions", "", *(_entry(f"sparkring.{name}") for name in homes),
        "## Results", "", *(_entry(result, "show_if_no_docstring: true") for result in results),
        "## Errors", "", *(_entry(f"sparkring.errors.{name}", "members: false", "merge_init_into_class: false")
                           for name in _classes("sparkring.errors")), ""])


def _entry(name: str, *options: str) -> str:
    return "\n".join([f"::: {name}", "    options:", "      heading_level: 3", *(f"      {option}" for option in options), ""])


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _classes(module: str) -> list[str]:
    path = PACKAGE / f"{module.replace('.', '/')}.py"
    return [node.name for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
