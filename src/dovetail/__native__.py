# SPDX-License-Identifier: Apache-2.0
"""Which modules of the core run compiled. The Python sources stay the authority: they say what is right.

Rules: compiled modules lie in `_native/`, where Python does not look for them by itself, with a manifest for each build
of what they are and of the digest of the sources that they were built from. They are used only while these sources are
the same; else, and with DOVETAIL_NATIVE=0 in the environment, the sources run. `dovetail --version` says which.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

SWITCH = "DOVETAIL_NATIVE"
KERNEL = "dovetail.core.placing._kernel"
HERE = Path(__file__).parent
BUILDS = HERE / "_native"


class CompiledModules(PathFinder):
    """Finds the modules that it was given, and no others."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = files

    def find_spec(  # type: ignore[override]
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, str(file)))


def digest(folder: Path, files: Iterable[str]) -> str:
    """Of these files, by name and content. Raises OSError where one cannot be read."""
    found = hashlib.sha256()
    for name in sorted(files):
        found.update(f"{name}\0".encode())
        found.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return found.hexdigest()


def write_manifest(at: Path, modules: Mapping[str, str], folder: Path, sources: Iterable[str]) -> None:
    """Say of what was built: file by module, and the sources, which lie in `folder`."""
    sources = sorted(sources)
    content = {"modules": dict(modules), "sources": sources, "digest": digest(folder, sources)}
    at.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def current(builds: Path = BUILDS, folder: Path = HERE) -> tuple[dict[str, Path], list[str]]:
    """The compiled modules whose sources are what they were, and the manifests of those that are not."""
    files: dict[str, Path] = {}
    stale = []
    for manifest in sorted(builds.glob("*.json")):
        try:
            content = json.loads(manifest.read_bytes())
            built = {name: builds / file for name, file in content["modules"].items()}
            here = all(file.is_file() and file.name.endswith(tuple(EXTENSION_SUFFIXES)) for file in built.values())
            same = here and digest(folder, content["sources"]) == content["digest"]
        except (OSError, ValueError, KeyError):
            same = False
        if same:
            files |= built
        else:
            stale.append(manifest.stem)
    return files, stale


def install() -> str:
    """Let the modules that are compiled be found from now on. Returns in words what runs."""
    if os.environ.get(SWITCH) == "0":
        return f"pure Python ({SWITCH}=0)"
    files, stale = current()
    if files:
        sys.meta_path.insert(0, CompiledModules(files))
    aside = f"; what was built of other sources is not used: {', '.join(stale)}" if stale else ""
    own = len([name for name in files if name.startswith("dovetail.") and name != KERNEL])
    kinds = (["kernel"] if KERNEL in files else []) + ([f"{own} compiled modules"] if own else [])
    return (" and ".join(kinds) or "pure Python") + aside
