# SPDX-License-Identifier: Apache-2.0
"""The C source of the kernel compiles without a warning, and its tests pass under the compiler's sanitizers."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dovetail.__native__ import FOLDER, KERNEL, KERNEL_SOURCES, PACKAGE, digest, install_kernel
from dovetail.core.placing import kernel
from tests.core.placing.test_kernel import SCORINGS
from tests.core.placing.test_kernel import test_the_kernel_scores_as_numpy_does as compare_scores
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


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
    if found is None:
        unavailable("no C compiler", hopeless=True)
    return found


def compiled(compiler: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """The kernel of the sources in a folder, built beside them. Not with Python's own flags: -fwrapv would hide sums
    that run over."""
    source = digest(folder / name for name in KERNEL_SOURCES)
    (folder / "layout.h").write_text(runpy.run_path(str(folder / "layout.py"))["header"]())
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
    built = compiled(compiler, tmp_path, "-fsyntax-only", *WARNINGS)
    assert built.returncode != 0 and "conversion" in built.stderr


SHARED = "#define UNITS 271\n", "enum { NEED = 1 };\n", "static const int64_t ITEM_BYTES[] = {8};\n"


@pytest.mark.parametrize("again", SHARED)
def test_what_layout_defines_c_cannot_define_again(compiler: str, tmp_path: Path, again: str) -> None:
    with (sources(tmp_path) / "worth.h").open("a") as source:
        source.write(again)
    built = compiled(compiler, tmp_path, "-fsyntax-only", *WARNINGS)
    assert built.returncode != 0 and ("redefin" in built.stderr or "redeclar" in built.stderr)


def copy_of_package(folder: Path) -> Path:
    """A copy of the package as it is written, nothing of it built yet; with bytecode, as far as there is some."""
    return Path(shutil.copytree(PACKAGE, folder / "dovetail", ignore=shutil.ignore_patterns("*.so", "*.pyd")))


class Scored(NamedTuple):
    """How a process ended that compared scores of a kernel with those of numpy, as `subprocess` has it, and what it
    printed."""

    status: int
    printed: str


def score_with(folder: Path, seeds: tuple[int, ...]) -> Scored:
    """Compare scores in worlds of these seeds, in a fork of this process that has the kernel of a folder. A fork need
    not import anything, and what a kernel does wrong is its own end alone."""
    file = os.memfd_create("scored")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for stream in (1, 2):
                os.dup2(file, stream)
            os.environ.pop("DOVETAIL_NATIVE", None)
            modules: dict[str, Any] = {}
            assert install_kernel(modules, folder) == "native kernel"
            kernel._kernel, kernel.BUILT = modules[KERNEL], True
            for seed, scoring in product(seeds, SCORINGS):
                compare_scores(seed, scoring.values[0])
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    printed = os.pread(file, 1 << 24, 0).decode()
    os.close(file)
    return Scored(status, printed)


def run_with_kernel(
    compiler: str, package: Path, tests: tuple[str, ...], flags: tuple[str, ...], environment: Mapping[str, str],
    *planted: Path,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """These tests, in a process whose kernel is the one of this package, built with these flags. (Optimized it takes
    longer to compile than to run.) Before them, what `score_with` finds with the kernels of the folders `planted`, as
    lines of JSON."""
    built = compiled(compiler, package / "core" / "placing", *flags)
    assert built.returncode == 0, built.stderr
    environment = os.environ | environment | {"PYTHONPATH": str(package.parent)}
    environment.pop("DOVETAIL_NATIVE", None)
    # This test may itself run in a worker. Plugins, fixtures of all tests and rewritten assertions take half the time.
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    program = f"from {__name__} import score_and_test; score_and_test()"
    command = [sys.executable, "-c", program, *map(str, planted), *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


def score_and_test() -> None:
    """The program of `run_with_kernel`."""
    names = sys.argv[1:]
    tests = [name for name in names if "::" in name]
    for folder in names[: len(names) - len(tests)]:
        print(json.dumps(score_with(Path(folder), (0,))), flush=True)
    # With -s pytest does not keep to itself what a sanitizer prints before it ends the process.
    options = ("-q", "-x", "-s", "--noconftest", "--assert=plain", "-p", "no:cacheprovider", "-W", "ignore")
    sys.exit(pytest.main([*options, *tests]))


PLANTED = {
    "AddressSanitizer: heap-buffer-overflow": (
        "i < count; i++)\n        if (values[i]",
        "i <= count; i++)\n        if (values[i]",
    ),
    "signed integer overflow": ("values[i] > values[found]", "values[i] + INT64_MIN > values[found]"),
}


class Sanitized(NamedTuple):
    """What the sanitizers find in the tests of the kernel as it is, and when a kernel scores in which a fault was
    planted."""

    run: subprocess.CompletedProcess[str]
    planted: dict[str, Scored]


@pytest.fixture(scope="module")
def sanitized(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    """In one process: that it starts with the sanitizers takes as long as the tests of a kernel."""
    named = [compiler, "-print-file-name=libasan.so"]
    library = subprocess.run(named, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    if not Path(library).is_absolute():
        unavailable(f"{compiler} has no libasan.so")
    folders = [sources(tmp_path_factory.mktemp("planted")) for _ in PLANTED]
    for folder, (sound, broken) in zip(folders, PLANTED.values(), strict=True):
        text = (folder / "kernel.c").read_text()
        assert text.count(sound) == 1
        (folder / "kernel.c").write_text(text.replace(sound, broken))
        built = compiled(compiler, folder, *SANITIZERS)
        assert built.returncode == 0, built.stderr
    environment = {
        "LD_PRELOAD": library,
        "PYTHONMALLOC": "malloc",
        # What the interpreter and numpy leave behind at their end would be reported as leaks.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    package = copy_of_package(tmp_path_factory.mktemp("sanitized"))
    run = run_with_kernel(compiler, package, KERNEL_TESTS, SANITIZERS, environment, *folders)
    lines = run.stdout.splitlines()[: len(folders)]
    assert len(lines) == len(folders), f"{run.stdout[-4000:]}\n{run.stderr[-6000:]}"
    scored = (Scored(*json.loads(line)) for line in lines)
    return Sanitized(run, dict(zip(PLANTED, scored, strict=True)))


@pytest.mark.slow
def test_the_sanitizers_find_nothing(sanitized: Sanitized) -> None:
    run = sanitized.run
    assert run.returncode == 0, f"{run.stdout[-4000:]}\n{run.stderr[-6000:]}"
    last_line = run.stdout.splitlines()[-1]
    assert " passed in " in last_line and "skipped" not in last_line


@pytest.mark.slow
@pytest.mark.parametrize("finding", PLANTED)
def test_the_sanitizers_find_what_is_planted(sanitized: Sanitized, finding: str) -> None:
    scored = sanitized.planted[finding]
    assert scored.status != 0 and finding in scored.printed, scored.printed[-6000:]


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
def test_the_kernel_scores_as_numpy_does_whatever_the_layout_is(compiler: str, tmp_path: Path) -> None:
    """So numpy and C have these values from one place."""
    package = copy_of_package(tmp_path)
    file = package / "core" / "placing" / "layout.py"
    text = file.read_text()
    for one, other in OTHER_LAYOUT.items():
        assert text.count(one) == 1, one
        text = text.replace(one, other)
    file.write_text(text)
    run = run_with_kernel(compiler, package, KERNEL_TESTS[:5], ("-O0",), {})
    assert run.returncode == 0, f"{run.stdout[-4000:]}\n{run.stderr[-4000:]}"
    assert " passed in " in run.stdout and "skipped" not in run.stdout


CHANGED = "UNITS 269", "CPU_ROW MEMORY_ROW", "BASE_ROW UNIT_ROW", "CHANGE_BITS 26"


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["", *CHANGED])
def test_a_value_that_c_changes_alone_is_found(compiler: str, tmp_path: Path, changed: str) -> None:
    """With none changed, nothing is found."""
    source = sources(tmp_path) / "worth.h"
    text, before = source.read_text(), "#define OF_KIND"
    assert text.count(before) == 1
    if changed:
        source.write_text(text.replace(before, f"#undef {changed.split()[0]}\n#define {changed}\n{before}"))
    built = compiled(compiler, tmp_path, "-O0")
    assert built.returncode == 0, built.stderr
    scored = score_with(tmp_path, (0, 4))
    if not changed:
        assert scored == Scored(0, "")
    else:
        found = ", in agree\n" in scored.printed or "do not belong together" in scored.printed
        assert scored.status == 1 and found, scored.printed


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
