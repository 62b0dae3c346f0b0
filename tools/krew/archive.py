# SPDX-License-Identifier: Apache-2.0
"""The archive of the plugin for one platform, and the manifest that names the archives.

Rules
- Libraries that every Python runs, and Dovetail itself, are in `lib/any`, those with compiled parts in a folder for
  each version of Python. Dovetail's own compiled parts are left out: without them it decides the same, more slowly.
- The same wheels make the same archive. krew requires the licence to be in it.
Source: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest.
"""

import gzip
import hashlib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

import yaml

from tools.images import tree
from tools.images.distributions import ROOT
from tools.images.python_packages import SITE, wheels_tree
from tools.images.tree import Tree
from tools.krew.wheels import Platform

FOLDER = Path(__file__).parent
BIN = "kubectl-dovetail"
_LEVEL = 6
"""Of compression. The highest, 9, takes four times as long for an archive that is 1 % smaller."""


def archive(dovetail: Path, libraries: Mapping[str, Iterable[Path]], epoch_s: int, level: int = _LEVEL) -> bytes:
    """The archive with Dovetail's wheel and, by version of Python, the wheels of its libraries.

    level: of gzip's compression."""
    found: Tree = {
        BIN: tree.file((FOLDER / BIN).read_bytes(), 0o755),
        "start.py": tree.file((FOLDER / "start.py").read_bytes()),
        **{name: tree.file((ROOT / name).read_bytes()) for name in ("LICENSE", "NOTICE")},
    }
    found |= _below("any", {path: one for path, one in wheels_tree([dovetail]).items() if not path.endswith(".so")})
    for python, wheels in libraries.items():
        for wheel in wheels:
            found |= _below("any" if _is_pure(wheel) else python, wheels_tree([wheel]))
    return gzip.compress(tree.layer(found, epoch_s), level, mtime=0)


def _below(folder: str, found: Tree) -> Tree:
    return {f"lib/{folder}/{path.removeprefix(SITE + '/')}": entry for path, entry in found.items()}


def _is_pure(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as found:
        return not any(name.endswith(".so") for name in found.namelist())


def manifest(version: str, homepage: str, uri: str, archives: Mapping[Platform, bytes], pythons: Sequence[str]) -> str:
    """The manifest for archives that are published below `uri`."""
    template = Template((FOLDER / "manifest.yaml").read_text())
    document = yaml.safe_load(template.substitute(VERSION=version, HOMEPAGE=homepage, PYTHONS=" or ".join(pythons)))
    document["spec"]["platforms"] = [
        {
            "selector": {"matchLabels": {"os": platform.os, "arch": platform.arch}},
            "uri": f"{uri}/{archive_name(version, platform)}",
            "sha256": hashlib.sha256(content).hexdigest(),
            "bin": BIN,
        }
        for platform, content in sorted(archives.items())
    ]
    return yaml.safe_dump(document, sort_keys=False, width=120)


def archive_name(version: str, platform: Platform) -> str:
    return f"kubectl-dovetail-v{version}-{platform}.tar.gz"
