# SPDX-License-Identifier: Apache-2.0
"""Compiled modules run only while the sources that they were built from are what is there."""

import json
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from dovetail import __native__
from dovetail.__native__ import KERNEL, SWITCH, current, write_manifest

SUFFIX = EXTENSION_SUFFIXES[0]


@pytest.fixture
def builds(tmp_path: Path) -> Path:
    """What was built of one source, which lies beside it."""
    (tmp_path / "a.py").write_text("right = 1\n")
    (tmp_path / f"a{SUFFIX}").write_bytes(b"")
    write_manifest(tmp_path / "core.json", {"dovetail.a": f"a{SUFFIX}"}, tmp_path, ["a.py"])
    return tmp_path


def test_what_was_built_of_the_sources_that_are_there_is_used(builds: Path) -> None:
    assert current(builds, builds) == ({"dovetail.a": builds / f"a{SUFFIX}"}, [])


@pytest.mark.parametrize("what", ["edited", "gone", "no binary", "another Python", "no manifest of ours"])
def test_what_was_built_of_other_sources_is_not_used(builds: Path, what: str) -> None:
    manifest = builds / "core.json"
    if what == "edited":
        (builds / "a.py").write_text("right = 2\n")
    elif what == "gone":
        (builds / "a.py").unlink()
    elif what == "no binary":
        (builds / f"a{SUFFIX}").unlink()
    elif what == "another Python":
        (builds / "a.cpython-39-alien.dll").write_bytes(b"")
        manifest.write_text(manifest.read_text().replace(f"a{SUFFIX}", "a.cpython-39-alien.dll"))
    else:
        manifest.write_text(json.dumps({"modules": {}}))
    assert current(builds, builds) == ({}, ["core"])


def test_the_environment_can_say_that_nothing_compiled_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__native__.sys, "meta_path", [])
    monkeypatch.setenv(SWITCH, "0")
    assert __native__.install() == "pure Python (DOVETAIL_NATIVE=0)"
    assert __native__.sys.meta_path == []


def test_modules_that_are_not_compiled_are_found_as_ever(builds: Path) -> None:
    finder = __native__.CompiledModules({KERNEL: builds / f"a{SUFFIX}"})
    assert finder.find_spec("dovetail.core.cycle") is None
    found = finder.find_spec(KERNEL)
    assert found is not None and found.origin == str(builds / f"a{SUFFIX}")
