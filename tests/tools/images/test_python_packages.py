# SPDX-License-Identifier: Apache-2.0
"""Wheels in the image."""

import re
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.paths import ROOT
from tools.images import python_packages
from tools.images.python_packages import SITE, distribution, runs_on, wheels_tree


@pytest.mark.parametrize(
    ("platforms", "runs"),
    [
        ("any", True),
        ("manylinux_2_36_x86_64", True),
        ("manylinux_2_37_x86_64", False),
        ("manylinux2014_x86_64", True),
        ("manylinux_2_39_x86_64.manylinux_2_17_x86_64", True),
        ("manylinux_3_1_x86_64", False),
        ("linux_x86_64", False),
        ("musllinux_1_2_x86_64", False),
        ("macosx_11_0_arm64", False),
    ],
)
def test_a_wheel_runs_on_its_c_library_and_newer_ones(platforms: str, runs: bool) -> None:
    assert runs_on(f"p-1-cp311-cp311-{platforms}.whl") is runs


def wheel(folder: Path, files: dict[str, str]) -> Path:
    path = folder / "p-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_modules_are_unpacked_and_scripts_tests_and_headers_are_not(tmp_path: Path) -> None:
    kept = {"p/a.py": "a", "p/_b.so": "b", "p-1.dist-info/METADATA": "m", "dovetail/core/placing/kernel.c": "k"}
    left = {
        "p-1.data/scripts/p": "#!python",
        "p-1.data/data/share/x": "x",
        "p/tests/test_a.py": "t",
        "p/a.pyi": "",
        "p/b.h": "",
    }
    found = wheels_tree([wheel(tmp_path, kept | left | {"p-1.data/purelib/p/c.py": "c"})])
    assert {path.removeprefix(f"{SITE}/"): entry.content.decode() for path, entry in found.items()} == {
        **kept, "p/c.py": "c",
    }  # fmt: skip


@pytest.mark.parametrize("path", ["../etc/passwd", "p/../../x", "/etc/passwd"])
def test_a_path_out_of_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="a wheel has the path"):
        wheels_tree([wheel(tmp_path, {path: ""})])


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT", "MIT"),
        ("License: BSD", "BSD"),
        ("License: Copyright (c) 2026\n         All rights", ""),
        ("Summary: x", ""),
    ],
)
def test_a_licence_is_named_where_the_metadata_name_one(tmp_path: Path, metadata: str, licence: str) -> None:
    made = wheel(tmp_path, {"p-1.dist-info/METADATA": f"Name: p\nVersion: 1\n{metadata}\n\nText."})
    found = distribution(made)
    assert (found.name, found.version, found.licence) == ("p", "1", licence)


def closure(requirements: Iterable[str]) -> set[str]:
    """These distributions and all that they need here, by the metadata of what is installed."""
    found: set[tuple[str, str]] = set()
    ahead = [(Requirement(text), "") for text in requirements]
    while ahead:
        needed, extra = ahead.pop()
        if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
            continue
        name = str(canonicalize_name(needed.name))
        for own in ("", *needed.extras):
            if (name, own) not in found:
                found.add((name, own))
                ahead += [(Requirement(text), own) for text in requires(name) or ()]
    return {name for name, _ in found}


def test_the_lock_is_of_every_installation_with_what_the_image_has_and_of_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = set(re.findall(r"^([a-z0-9._-]+)==", python_packages.REQUIREMENTS.read_text(), re.MULTILINE))
    extras = project["optional-dependencies"]
    assert pinned == closure((*project["dependencies"], *extras["agent"], *extras["dashboard"], *extras["views"]))
