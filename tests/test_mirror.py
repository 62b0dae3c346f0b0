# SPDX-License-Identifier: Apache-2.0
"""The folders of `tests` are those of the source, but for a few whose tests cross it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.docs.pages import page
from tests.paths import ROOT

CROSSING = {"contract", "live", "node", "referee"}
"""Folders whose tests are of several folders of the source at once."""
MIRRORED = ("src/dovetail", "src", ".")
"""Where a folder of the same path has to be. The last one is for benchmarks, deploy, docs and tools."""


def strays(folders: Iterable[Path], root: Path = ROOT) -> list[str]:
    """The folders below `tests` that mirror none, as paths below it."""
    below = sorted(folder.as_posix() for folder in folders)
    return [
        folder
        for folder in below
        if folder not in CROSSING and not any((root / mirrored / folder).is_dir() for mirrored in MIRRORED)
    ]


def test_every_folder_of_tests_is_one_of_the_source_or_crosses_it() -> None:
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("*.py")}
    assert len(folders) > 50
    assert {folder.as_posix() for folder in folders} > CROSSING
    assert strays(folders) == []


def test_contributing_lists_the_folders_that_cross() -> None:
    (listed,) = [page("CONTRIBUTING.md").section("Where a change goes").rows("folder")]
    assert {code for row in listed for code in row.code[0]} == {f"tests/{folder}" for folder in CROSSING}


def test_a_folder_that_mirrors_none_is_found(tmp_path: Path) -> None:
    for folder in ("src/dovetail/core/queues", "src/kubecel", "tools/standin"):
        (tmp_path / folder).mkdir(parents=True)
    folders = map(Path, ("", "core/queues", "kubecel", "tools/standin", "live", "core/sharing", "queues", "live/core"))
    assert strays(folders, tmp_path) == ["core/sharing", "live/core", "queues"]
