# SPDX-License-Identifier: Apache-2.0
"""The C source of the kernel compiles without a warning, and its tests pass under the compiler's sanitizers."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dovetail.__native__ import FOLDER, KERNEL_SOURCES, PACKAGE, digest
from dovetail.core.placing import kernel
from tests.needs import unavailable
from tests.paths import ROOT

WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
SANITIZERS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
KERNEL_TESTS = (
    *(
        f"tests/core/placing/test_kernel.py::test_the_kernel_scores_as_numpy_does[{seed}-{scoring}]"
        for seed in (0, 4, 5)
        for scoring in ("tightest", "expected-fill")
    ),
    "tests/core/placing/test_kernel.py::test_with_the_kernel_the_same_is_decided[0-tightest]",
    "tests/core/placing/test_kernel.py::test_with_the_kernel_the_same_is_decided[1-expected-fill]",
    "tests/core/placing/test_kernel.py::test_a_kernel_over_arrays_that_do_not_belong_together_is_refused",
    "tests/core/placing/test_arrangement.py::test_the_kernel_chooses_the_same_slots_in_the_same_order",
    "tests/core/placing/test_arrangement.py::test_the_kernel_refuses_arrays_that_do_not_belong_together",
    "tests/core/placing/test_kernel_source.py::test_an_array_that_is_refused_is_let_go",
    "tests/core/placing/test_expected_fill.py::test_the_kernel_fills_as_numpy_does",
    "tests/core/placing/test_expected_fill.py::test_arrays_that_do_not_belong_together_are_refused",
)
"""As much as takes ten seconds of CPU: some of the seeds, and all that hands the kernel wrong arrays."""


@pytest.fixture
def compiler() -> str:
    found = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
    if found is None:
        unavailable("no C compiler", hopeless=True)
    return found


def compiled(compiler: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """The kernel of the sources in a folder, built beside them. Not with Python's own flags: -fwrapv would hide sums
    that run over."""
    source = digest(folder / name for name in KERNEL_SOURCES)
    writes = "import layout; print(layout.header())"
    header = subprocess.run([sys.executable, "-c", writes], cwd=folder, capture_output=True, text=True, check=True)
    (folder / "layout.h").write_text(header.stdout)
    command = [compiler, *flags, "-fPIC", "-shared", f'-DSOURCE_DIGEST="{source}"']
    command += ["-isystem", sysconfig.get_paths()["include"], "kernel.c", "-o", "_kernel.abi3.so"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_lines_are_as_short_as_those_of_python() -> None:
    long = [
        f"{name}:{number}"
        for name in KERNEL_SOURCES
        for number, line in enumerate((FOLDER / name).read_text().splitlines(), 1)
        if len(line) > 120
    ]
    assert long == []


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


SHARED = "#define UNITS 271\n", "enum { NEED = 1 };\n", "static const int64_t ITEM_BYTES[] = {8};\n"


@pytest.mark.parametrize("again", SHARED)
def test_what_layout_defines_c_cannot_define_again(compiler: str, tmp_path: Path, again: str) -> None:
    with (sources(tmp_path) / "worth.h").open("a") as source:
        source.write(again)
    built = compiled(compiler, tmp_path, "-O2", *WARNINGS)
    assert built.returncode != 0 and ("redefin" in built.stderr or "redeclar" in built.stderr)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package as it is written, nothing of it built yet; with bytecode, as far as there is some."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "dovetail", ignore=shutil.ignore_patterns("*.so", "*.pyd")))


def run_sanitized(compiler: str, package: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """These tests, in a process whose kernel is the one of this package, built with the sanitizers."""
    named = [compiler, "-print-file-name=libasan.so"]
    library = subprocess.run(named, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    if not Path(library).is_absolute():
        unavailable(f"{compiler} has no libasan.so")
    environment = {
        "LD_PRELOAD": library,
        "PYTHONMALLOC": "malloc",
        # What the interpreter and numpy leave behind at their end would be reported as leaks.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return run_with_kernel(compiler, package, tests, SANITIZERS, environment)


def run_with_kernel(
    compiler: str, package: Path, tests: tuple[str, ...], flags: tuple[str, ...], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """These tests, in a process whose kernel is the one of this package, built with these flags. (Optimized it takes
    longer to compile than to run.)"""
    built = compiled(compiler, package / "core" / "placing", *flags)
    assert built.returncode == 0, built.stderr
    environment = os.environ | environment | {"PYTHONPATH": str(package.parent)}
    environment.pop("DOVETAIL_NATIVE", None)
    # This test may itself run in a worker. Plugins, fixtures of all tests and rewritten assertions take half the time.
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # With -s pytest does not keep to itself what a sanitizer prints before it ends the process.
    options = ("-q", "-x", "-s", "--noconftest", "--assert=plain", "-p", "no:cacheprovider", "-W", "ignore")
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_the_sanitizers_find_nothing(compiler: str, package: Path) -> None:
    run = run_sanitized(compiler, package, KERNEL_TESTS)
    assert run.returncode == 0, f"{run.stdout[-4000:]}\n{run.stderr[-6000:]}"
    assert " passed in " in run.stdout and "skipped" not in run.stdout


PLANTED = {
    "AddressSanitizer: heap-buffer-overflow": (
        "i < count; i++)\n        if (values[i]",
        "i <= count; i++)\n        if (values[i]",
    ),
    "signed integer overflow": ("values[i] > values[found]", "values[i] + INT64_MIN > values[found]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("finding", PLANTED)
def test_the_sanitizers_find_what_is_planted(compiler: str, package: Path, finding: str) -> None:
    source = package / "core" / "placing" / "kernel.c"
    text, (sound, broken) = source.read_text(), PLANTED[finding]
    assert text.count(sound) == 1
    source.write_text(text.replace(sound, broken))
    run = run_sanitized(compiler, package, KERNEL_TESTS[:1])
    assert run.returncode != 0 and finding in run.stdout + run.stderr


OTHER_LAYOUT = {
    "BLOCK = 128": "BLOCK = 256",
    "UNITS = 270": "UNITS = 200",
    "STEP_MILLI = 10": "STEP_MILLI = 20",
    "PackedAmount(28, 2**18 - 1, 0)": "PackedAmount(30, 2**17 - 1, 1)",
    "PackedAmount(33, 2**5 - 1, 0)": "PackedAmount(34, 2**4 - 1, 1)",
    "PODS_ROW, CPU_ROW, MEMORY_ROW": "CPU_ROW, PODS_ROW, MEMORY_ROW",
    "TAKEN_ROW, LIMIT_ROW": "LIMIT_ROW, TAKEN_ROW",
    "USE, FURTHER_USE, CORES": "CORES, FURTHER_USE, USE",
    "need: Ints\n    floor: Ints": "floor: Ints\n    need: Ints",
    "prices: Ints\n    sizes: Ints": "sizes: Ints\n    prices: Ints",
}


@pytest.mark.slow
def test_the_kernel_scores_as_numpy_does_whatever_the_layout_is(compiler: str, package: Path) -> None:
    """So numpy and C have these values from one place."""
    file = package / "core" / "placing" / "layout.py"
    text = file.read_text()
    for one, other in OTHER_LAYOUT.items():
        assert text.count(one) == 1, one
        text = text.replace(one, other)
    file.write_text(text)
    run = run_with_kernel(compiler, package, KERNEL_TESTS[:5], ("-O0",), {})
    assert run.returncode == 0, f"{run.stdout[-4000:]}\n{run.stderr[-4000:]}"
    assert " passed in " in run.stdout and "skipped" not in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["UNITS 269", "CPU_ROW MEMORY_ROW", "BASE_ROW UNIT_ROW", "CHANGE_BITS 26"])
def test_a_value_that_c_changes_alone_is_found(compiler: str, package: Path, changed: str) -> None:
    source = package / "core" / "placing" / "worth.h"
    text, before = source.read_text(), "#define OF_KIND"
    assert text.count(before) == 1
    source.write_text(text.replace(before, f"#undef {changed.split()[0]}\n#define {changed}\n{before}"))
    run = run_with_kernel(compiler, package, KERNEL_TESTS[:4], ("-O0",), {})
    assert run.returncode == 1 and " failed" in run.stdout, f"{run.stdout[-4000:]}\n{run.stderr[-4000:]}"


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
