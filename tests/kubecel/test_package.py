# SPDX-License-Identifier: Apache-2.0
"""`kubecel` as a distribution of its own: its README is true, and its wheel works where Dovetail is not installed."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kubecel import MAX_LENGTH, costs, macros
from kubecel.checker import DEPTH
from kubecel.declarations import FIELDS, FUNCTIONS
from kubecel.syntax import NESTING
from kubecel.values import LARGEST, LONGEST_NUMBER
from tests.docs.pages import page
from tests.paths import ROOT

SOURCE = ROOT / "src/kubecel"
README = SOURCE / "README.md"
NEEDED = ("msgspec", "pytest")
"""Beside the wheel, to run its tests."""


def test_the_example_of_the_readme_runs() -> None:
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert failed == 0 and tried >= 5


def test_the_readme_names_every_function_and_macro() -> None:
    section = page("src/kubecel/README.md").section("What is supported").text
    named = set(re.findall(r"`([^`]+)`", section))
    functions = {name for name in FUNCTIONS if re.fullmatch(r"[A-Za-z0-9.]+", name)}
    expanded = {"cel.bind" if name == "bind" else name for name, _ in macros.MACROS}
    assert len(functions) > 100 and len(expanded) > 10
    assert sorted((functions | expanded | FIELDS.keys()) - named) == []


def test_the_readme_has_the_limits() -> None:
    rows = page("src/kubecel/README.md").section("Limits").rows("what")
    assert [[int(n) for n in re.findall(r"\d+", row.cells[1].replace(",", ""))] for row in rows] == [
        [MAX_LENGTH // 1024], [costs.LIMIT], [NESTING, DEPTH], [LARGEST], [LONGEST_NUMBER],
    ]  # fmt: skip


def test_the_licence_is_that_of_the_repository() -> None:
    assert (SOURCE / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.slow
def test_the_wheel_alone_passes_the_tests(tmp_path: Path) -> None:
    unbuilt = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    source = shutil.copytree(SOURCE, tmp_path / "kubecel", ignore=unbuilt)
    _pip("wheel", "--no-build-isolation", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("kubecel-*.whl")
    _run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    _pip("--python", python, "install", wheel)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    for name in _with_dependencies(NEEDED):
        _link(name, packages)
    tests = tmp_path / "checked/tests"
    shutil.copytree(ROOT / "tests/kubecel", tests / "kubecel", ignore=shutil.ignore_patterns("__pycache__"))
    (tests / "kubecel" / Path(__file__).name).unlink()
    (tests.parent / "pytest.ini").write_text(
        "[pytest]\npythonpath = .\naddopts = --import-mode=importlib -p no:cacheprovider\nmarkers = slow\n"
    )
    refused = subprocess.run(
        [python, "-c", "import dovetail"], cwd=tests.parent, env=_environment(), capture_output=True, text=True
    )
    assert "No module named 'dovetail'" in refused.stderr
    # Those that take long show nothing more of what the wheel has. To rewrite the assertions of a copy takes a second.
    argv = (python, "-m", "pytest", "-q", "--assert=plain", "-m", "not slow", "tests")
    reported = _run(*argv, cwd=tests.parent)
    passed = re.search(r"(\d+) passed", reported)
    assert passed is not None and int(passed[1]) > 200, reported


def _run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _pip(*arguments: object) -> None:
    _run(sys.executable, "-m", "pip", "-q", "--no-input", *arguments, "--no-index", "--no-deps")


def _environment() -> dict[str, str]:
    """Without anything by which Python finds other packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}


def _with_dependencies(names: tuple[str, ...]) -> list[str]:
    found, ahead = dict[str, None](), list(names)
    while ahead:
        name = ahead.pop()
        if name not in found:
            found[name] = None
            wanted = map(Requirement, distribution(name).requires or ())
            ahead += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return list(found)


def _link(name: str, packages: Path) -> None:
    """Let the distribution, as it is installed here, be imported from `packages`."""
    there = distribution(name)
    tops = {file.parts[0] for file in there.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        (packages / top).symlink_to(Path(str(there.locate_file(top))))
