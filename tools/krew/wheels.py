# SPDX-License-Identifier: Apache-2.0
"""The wheels of Dovetail's commands for a platform and a Python, from requirements/run.lock with their hashes.

Rules: only what Dovetail needs without any extra. pip takes wheels for other platforms and versions than this
machine's, so one machine builds the archives of all.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import requires
from pathlib import Path

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.controlplane.binaries import PlaneUnavailable
from tools.controlplane.children import tail
from tools.images.cache import cache_dir, only_builder
from tools.images.distributions import ROOT
from tools.images.python_packages import REQUIREMENTS

_TAGS = {
    ("linux", "amd64"): [f"manylinux_2_{minor}_x86_64" for minor in range(5, 29)],
    ("linux", "arm64"): [f"manylinux_2_{minor}_aarch64" for minor in range(17, 29)],
    ("darwin", "amd64"): ["macosx_14_0_x86_64"],
    ("darwin", "arm64"): ["macosx_14_0_arm64"],
}
"""The tags of wheels that a platform can run. pip adds the older ones of macOS itself."""


class Platform(Struct, frozen=True, order=True):
    """As krew names it: linux or darwin, amd64 or arm64."""

    os: str
    arch: str

    @property
    def tags(self) -> list[str]:
        return _TAGS[self.os, self.arch]

    def __str__(self) -> str:
        return f"{self.os}-{self.arch}"


PLATFORMS = tuple(Platform(*one) for one in _TAGS)


def download(platform: Platform, python: str) -> list[Path]:
    """The wheels, sorted by name. Raises PlaneUnavailable."""
    locked = "".join(locked_requirements())
    kept = cache_dir() / "krew" / f"{platform}-{python}-{hashlib.sha256(locked.encode()).hexdigest()[:16]}"
    with only_builder("krew"):
        if not kept.is_dir():
            partial = kept.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            requirements = partial / "requirements.txt"
            requirements.write_text(locked)
            argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            argv += ["--require-hashes", "--only-binary=:all:", f"--dest={partial}", f"--requirement={requirements}"]
            argv += [f"--python-version={python}", *(f"--platform={tag}" for tag in platform.tags)]
            pip = subprocess.run(argv, capture_output=True, text=True, check=False)
            if pip.returncode:
                raise PlaneUnavailable(f"pip cannot download the wheels for {platform}:\n{tail(pip.stderr)}")
            partial.rename(kept)
    return sorted(kept.glob("*.whl"))


def locked_requirements() -> Iterator[str]:
    """The entries of run.lock for what Dovetail needs without an extra."""
    entries = {
        canonicalize_name(entry.partition("==")[0]): entry
        for entry in re.findall(r"^\S+==.*\n(?:[ #].*\n)*", REQUIREMENTS.read_text(), re.MULTILINE)
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(one) for one in project["dependencies"]]
    found: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        one = wanted.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if (name, extras) in found or not _needed(one, ()):
            continue
        if name not in entries:
            raise PlaneUnavailable(f"{REQUIREMENTS.name} has no {name}: make lock")
        found.add((name, extras))
        for below in map(Requirement, requires(name) or ()):
            if _needed(below, extras):
                below.marker = None
                wanted.append(below)
    names = {name for name, _ in found}
    yield from (entries[name] for name in sorted(names))


def _needed(one: Requirement, extras: Iterable[str]) -> bool:
    """Whether a library that was asked for with these extras needs it."""
    marker = one.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
