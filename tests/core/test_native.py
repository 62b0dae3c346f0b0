# SPDX-License-Identifier: Apache-2.0
"""The kernel runs only while it is what its source says, and where it may."""

import os
import shutil
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from dovetail.__native__ import FOLDER, KERNEL, install


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the source, and of the kernel where it was built."""
    monkeypatch.delenv("DOVETAIL_NATIVE", raising=False)
    for name in ["kernel.c", *(f"_kernel{suffix}" for suffix in EXTENSION_SUFFIXES)]:
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
    told = install(modules, folder)
    return told, modules[KERNEL]


def test_the_kernel_runs_where_it_was_built_from_the_source_beside_it(binary: Path) -> None:
    told, kernel = runs(binary.parent)
    assert (told, kernel.__file__) == ("native kernel", str(binary))


def test_a_kernel_of_another_source_does_not_run(binary: Path) -> None:
    source = binary.parent / "kernel.c"
    source.write_text(source.read_text() + "\n")
    told, kernel = runs(binary.parent)
    assert kernel is None
    assert told == (f"pure Python: {binary} was built from another source than what is there; install the package anew")


def test_a_kernel_without_its_source_does_not_run(binary: Path) -> None:
    (binary.parent / "kernel.c").unlink()
    told, kernel = runs(binary.parent)
    assert kernel is None and told.startswith(f"pure Python: {binary} cannot be used: ") and "kernel.c" in told


def test_what_is_no_kernel_does_not_run(folder: Path) -> None:
    broken = folder / f"_kernel{EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"not a library")
    told, kernel = runs(folder)
    assert kernel is None and told.startswith(f"pure Python: {broken} cannot be used: ")


def test_where_none_was_built_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_NATIVE", raising=False)
    assert runs(tmp_path) == ("pure Python: the kernel was not built", None)


def test_the_environment_can_forbid_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_NATIVE", "0")
    assert runs(folder) == ("pure Python: DOVETAIL_NATIVE=0", None)
