# SPDX-License-Identifier: Apache-2.0
"""What is native runs only while it fits its sources, and where it may."""

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from dovetail.__native__ import COMPILED, FOLDER, KERNEL, KERNEL_SOURCES, PACKAGE, group, install_kernel, not_compiled


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the source, and of the kernel where it was built."""
    monkeypatch.delenv("DOVETAIL_NATIVE", raising=False)
    for name in [*KERNEL_SOURCES, *(f"_kernel{suffix}" for suffix in EXTENSION_SUFFIXES)]:
        if (FOLDER / name).exists():
            shutil.copy(FOLDER / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def binary(folder: Path) -> Path:
    """In the copy."""
    found = next(folder.glob("_kernel*"), None)
    if found is None:
        outcome = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        outcome("the kernel was not built: is there a C compiler?")
    return found


def runs(folder: Path) -> tuple[str, Any]:
    modules: dict[str, Any] = {}
    reported = install_kernel(modules, folder)
    return reported, modules[KERNEL]


def test_the_kernel_runs_where_it_was_built_from_the_source_beside_it(binary: Path) -> None:
    reported, kernel = runs(binary.parent)
    assert (reported, kernel.__file__) == ("native kernel", str(binary))


@pytest.mark.parametrize("name", KERNEL_SOURCES)
def test_a_kernel_of_another_source_does_not_run(binary: Path, name: str) -> None:
    source = binary.parent / name
    source.write_text(source.read_text() + "\n")
    reported, kernel = runs(binary.parent)
    assert kernel is None
    assert reported == (
        f"pure Python: {binary} was built from another source than what is there; install the package anew"
    )


def test_a_kernel_without_its_source_does_not_run(binary: Path) -> None:
    (binary.parent / "kernel.c").unlink()
    reported, kernel = runs(binary.parent)
    assert kernel is None and reported.startswith(f"pure Python: {binary} cannot be used: ") and "kernel.c" in reported


def test_what_is_no_kernel_does_not_run(folder: Path) -> None:
    broken = folder / f"_kernel{EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"not a library")
    reported, kernel = runs(folder)
    assert kernel is None and reported.startswith(f"pure Python: {broken} cannot be used: ")


def test_where_none_was_built_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_NATIVE", raising=False)
    assert runs(tmp_path) == ("pure Python: the kernel was not built", None)


def test_the_environment_can_forbid_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_NATIVE", "0")
    assert runs(folder) == ("pure Python: DOVETAIL_NATIVE=0", None)


# The compiled modules.


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The sources of the modules, with empty files where their libraries would be."""
    package = tmp_path / "dovetail"
    for name in COMPILED:
        source = Path(*name.split(".")).with_suffix(".py")
        (package / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / source, package / source)
        (package / source).with_suffix(EXTENSION_SUFFIXES[0]).touch()
    (tmp_path / f"{group(package)}__mypyc{EXTENSION_SUFFIXES[0]}").touch()
    return package


def test_the_compiled_modules_run_where_all_were_built_from_the_sources_beside_them(package: Path) -> None:
    assert not_compiled(package) == ""


@pytest.mark.parametrize("name", COMPILED[::6])
def test_where_one_source_changed_none_of_them_runs(package: Path, name: str) -> None:
    source = package / Path(*name.split(".")).with_suffix(".py")
    source.write_text(source.read_text() + "\n")
    assert "from other sources than what is there" in not_compiled(package)


def test_where_one_is_missing_none_of_them_runs(package: Path) -> None:
    (package / "core" / "state").with_suffix(EXTENSION_SUFFIXES[0]).unlink()
    assert "install the package anew" in not_compiled(package)


def test_a_missing_build_is_reported(package: Path) -> None:
    next(package.parent.glob("*__mypyc*")).unlink()
    assert not_compiled(package) == "it was not compiled"


def imported(native: str) -> list[str]:
    """What runs, and the file of a compiled module, in a process of its own."""
    command = "import dovetail, dovetail.core.state as state; print(dovetail.__runs__()); print(state.__file__)"
    environment = os.environ | {"DOVETAIL_NATIVE": native}
    run = subprocess.run([sys.executable, "-c", command], env=environment, check=True, capture_output=True, text=True)
    return run.stdout.splitlines()


def test_the_environment_forbids_the_compiled_modules_too() -> None:
    runs_on, file = imported("0")
    assert (runs_on, Path(file).name) == ("pure Python: DOVETAIL_NATIVE=0", "state.py")


def test_what_was_compiled_is_what_is_imported() -> None:
    if reason := not_compiled(PACKAGE):
        outcome = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        outcome(f"the core does not run compiled: {reason}")
    runs_on, file = imported("1")
    assert runs_on.startswith("compiled core, ") and file.endswith(EXTENSION_SUFFIXES[0])
