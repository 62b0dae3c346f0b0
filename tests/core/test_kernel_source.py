# SPDX-License-Identifier: Apache-2.0
"""The C source of the kernel compiles without a warning."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from dovetail.__native__ import FOLDER, KERNEL_SOURCES, digest
from dovetail.core.placing import kernel
from tests.needs import unavailable

WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")


@pytest.fixture
def compiler() -> str:
    found = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
    if found is None:
        unavailable("no C compiler", hopeless=True)
    return found


def compiled(compiler: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """The kernel of the sources in a folder, built beside them."""
    source = digest(folder / name for name in KERNEL_SOURCES)
    command = [compiler, *flags, "-fPIC", "-shared", f'-DSOURCE_DIGEST="{source}"']
    command += ["-isystem", sysconfig.get_paths()["include"], "kernel.c", "-o", "_kernel.abi3.so"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def sources(folder: Path) -> Path:
    for name in KERNEL_SOURCES:
        shutil.copy(FOLDER / name, folder / name)
    return folder


def test_the_sources_compile_without_a_warning(compiler: str, tmp_path: Path) -> None:
    built = compiled(compiler, sources(tmp_path), "-O2", *WARNINGS)
    assert built.returncode == 0, built.stderr


def test_a_warning_is_an_error(compiler: str, tmp_path: Path) -> None:
    with (sources(tmp_path) / "kernel.c").open("a") as source:
        source.write("int narrowed(long wide);\nint narrowed(long wide) { return wide; }\n")
    built = compiled(compiler, tmp_path, "-O2", *WARNINGS)
    assert built.returncode != 0 and "conversion" in built.stderr


@pytest.mark.skipif(not kernel.BUILT, reason="there is no kernel")
def test_an_array_that_is_refused_is_let_go() -> None:
    wrong = np.zeros(3, dtype=np.int32)
    right = np.zeros(3, dtype=np.int64)
    before = sys.getrefcount(wrong), sys.getrefcount(right)
    for _ in range(10):
        with pytest.raises(TypeError, match="items of 4 bytes"):
            kernel._kernel.fill(wrong, right, right, right, right)
        with pytest.raises(TypeError, match="items of 4 bytes"):
            kernel._kernel.arrange(right, wrong, None, 1, ())
    assert (sys.getrefcount(wrong), sys.getrefcount(right)) == before
