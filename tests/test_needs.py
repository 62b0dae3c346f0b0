# SPDX-License-Identifier: Apache-2.0
"""What a run in several processes says of tests that could not run, and of a process that dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

NEEDS_PLANE = "tests/tools/controlplane/test_command_line.py"
WORKERS = ("-n", "2", "--dist", "worksteal")
ONE_WORKER = ("-n", "1", "--dist", "worksteal")
"""For a single test, which leaves nothing to the second: the worker and the process that sums up are two."""


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, arguments)]
    return subprocess.run(argv, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_workers_list_at_the_end_which_tests_had_no_control_plane() -> None:
    """In one process tests/tools/controlplane/test_command_line.py has it."""
    ended = run(*ONE_WORKER, NEEDS_PLANE, "-m", "plane", CI="true", XDG_CACHE_HOME=os.devnull)
    _, _, left_out = ended.stdout.partition("CONTROL PLANE TESTS DID NOT RUN")
    assert "1 tests need a real kube-apiserver and were not run:" in left_out, ended.stdout
    assert f"{NEEDS_PLANE}::" in left_out
    assert "set XDG_CACHE_HOME to a writable one" in left_out
    assert ended.returncode == 1


@pytest.mark.slow
def test_tests_without_an_image_are_listed_at_the_end() -> None:
    builds = "tests/tools/images/test_build.py"
    ended = run(*ONE_WORKER, builds, "-k", "small", CI="", XDG_CACHE_HOME=os.devnull)
    _, _, left_out = ended.stdout.partition("TESTS DID NOT RUN")
    assert "no wheel: " in left_out and f"  {builds}::test_it_is_small" in left_out, ended.stdout
    assert ended.returncode == 0


@pytest.mark.slow
def test_a_worker_that_dies_fails_the_test_it_ran_and_the_others_are_run(tmp_path: Path) -> None:
    (tmp_path / "test_dies.py").write_text("import os\n\n\ndef test_dies():\n    os.abort()\n")
    (tmp_path / "test_lives.py").write_text("def test_lives():\n    pass\n")
    ended = run(*WORKERS, f"--rootdir={tmp_path}", tmp_path)
    assert ended.returncode == 1
    assert "crashed while running 'test_dies.py::test_dies'" in ended.stdout
    assert "1 failed, 1 passed" in ended.stdout
