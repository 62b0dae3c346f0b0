# SPDX-License-Identifier: Apache-2.0
"""Wheels in the image: those of requirements/run.lock, downloaded by pip with their hashes, and Dovetail's own.

Rules: the lock has Dovetail's dependencies with the extras `agent`, `dashboard` and `views`, and no other. A wheel is
unpacked and not installed, so that nothing of this machine gets into the image: scripts, which would name this
machine's Python, are left out.
Tests, headers and type stubs of the libraries are left out too.
Sources: the binary distribution format of PyPA's specifications; PEP 600 for the tags of manylinux.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.parser import HeaderParser
from pathlib import Path

from msgspec import Struct

from tools.controlplane.binaries import PlaneUnavailable
from tools.controlplane.children import tail
from tools.images import tree
from tools.images.cache import cache_dir, only_builder
from tools.images.tree import Tree

REQUIREMENTS = Path(__file__).parents[2] / "requirements/run.lock"
PYTHON = (3, 11)
"""The Python of Debian bookworm; wheels with compiled parts are of one version."""
GLIBC = (2, 36)
SITE = "usr/local/lib/python3.11/dist-packages"
"""Debian's Python looks there for what is not Debian's."""
# No part of a library runs them. `testing` of numpy stays: others import it.
_UNUSED_PATHS = re.compile(
    r"(?!dovetail/).*((^|/)tests/|[.](pyi|pxd|pyx|c|h|hpp|a)$)|numpy/_core/(include|lib)/|numpy/f2py/"
)


class Distribution(Struct, frozen=True):
    """What the metadata of a wheel has. sha256: of the wheel; licence: as it is named there, "" if it is not."""

    name: str
    version: str
    licence: str
    sha256: str


def download() -> list[Path]:
    """The wheels of run.lock, sorted by name. Raises PlaneUnavailable."""
    _check_python()
    kept = cache_dir() / "wheels" / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    with only_builder("wheels"):
        _download(kept)
    wheels = sorted(kept.glob("*.whl"))
    if unfit := [wheel.name for wheel in wheels if not runs_on(wheel.name)]:
        raise PlaneUnavailable(f"these wheels need a newer C library than {'.'.join(map(str, GLIBC))}: {unfit}")
    return wheels


def _download(kept: Path) -> None:
    if not kept.is_dir():
        partial = kept.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        argv += ["--require-hashes", "--only-binary=:all:", f"--dest={partial}", f"--requirement={REQUIREMENTS}"]
        pip = subprocess.run(argv, capture_output=True, text=True, check=False)
        if pip.returncode:
            raise PlaneUnavailable(f"pip cannot download the wheels of {REQUIREMENTS.name}:\n{tail(pip.stderr)}")
        partial.rename(kept)


def _check_python() -> None:
    if sys.version_info[:2] != PYTHON:
        wanted = ".".join(map(str, PYTHON))
        raise PlaneUnavailable(
            f"the image has Debian's Python {wanted}, and its wheels have to be built by the same version; this is "
            f"{sys.version.split()[0]}: make PYTHON=python{wanted} in a clean clone"
        )


def runs_on(wheel: str, glibc: tuple[int, int] = GLIBC) -> bool:
    """Whether one of the platform tags in a wheel's file name is of this C library or an older one."""
    platforms = wheel.removesuffix(".whl").rsplit("-", 1)[-1].split(".")
    legacy = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    for platform in platforms:
        found = re.match(r"manylinux_(\d+)_(\d+)_|(manylinux\d+)_", platform)
        if platform == "any":
            return True
        if found and (legacy[found[3]] if found[3] else (int(found[1]), int(found[2]))) <= glibc:
            return True
    return False


def wheels_tree(wheels: Iterable[Path]) -> Tree:
    """The files of these wheels, without what `_UNUSED_PATHS` has and without scripts."""
    whole: Tree = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                path = _installed(info.filename)
                if path and not _UNUSED_PATHS.match(path) and not info.is_dir():
                    whole[f"{SITE}/{path}"] = tree.file(archive.read(info))
    return whole


def _installed(name: str) -> str:
    """The path below SITE of a member of a wheel, "" for what is not unpacked."""
    if ".." in Path(name).parts or name.startswith("/"):
        raise ValueError(f"a wheel has the path {name}")
    folder, _, rest = name.partition("/")
    if not folder.endswith(".data"):
        return name
    kind, _, path = rest.partition("/")
    return path if kind in ("purelib", "platlib") else ""


def distribution(wheel: Path) -> Distribution:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    licence = str(metadata.get("License-Expression") or metadata.get("License") or "")
    # Some have the text of the licence there.
    short = licence if 0 < len(licence) <= 80 and "\n" not in licence else ""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Distribution(str(metadata["Name"]), str(metadata["Version"]), short, digest)
