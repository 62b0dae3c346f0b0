# SPDX-License-Identifier: Apache-2.0
"""The native kernel of the core (`core/placing/kernel.c`), where the package could build it.

Rules: the kernel knows the digest of the source that it was built from. It runs only while this source is what lies
beside it; else, and with DOVETAIL_NATIVE=0 in the environment, numpy does the same work. `dovetail --version` says
which runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

KERNEL = "dovetail.core.placing._kernel"
FOLDER = Path(__file__).parent / "core" / "placing"


def install(modules: MutableMapping[str, Any] = sys.modules, folder: Path = FOLDER) -> str:
    """Let the kernel be imported if it is of the source in this folder. Returns in words what runs."""
    found = _load(folder) if os.environ.get("DOVETAIL_NATIVE") != "0" else "DOVETAIL_NATIVE=0"
    if isinstance(found, ModuleType):
        modules[KERNEL] = found
        return "native kernel"
    modules[KERNEL] = None
    return f"pure Python: {found}"


def _load(folder: Path) -> ModuleType | str:
    """The kernel, or why there is none."""
    file = next((file for suffix in EXTENSION_SUFFIXES if (file := folder / f"_kernel{suffix}").is_file()), None)
    if file is None:
        return "the kernel was not built"
    loader = ExtensionFileLoader(KERNEL, str(file))
    spec = spec_from_file_location(KERNEL, file, loader=loader)
    assert spec is not None, "a loader was given"
    try:
        kernel = module_from_spec(spec)
        loader.exec_module(kernel)
        current = sha256((folder / "kernel.c").read_bytes()).hexdigest() == kernel.SOURCE
    except (ImportError, AttributeError, OSError) as error:
        return f"{file} cannot be used: {error}"
    return kernel if current else f"{file} was built from another source than what is there; install the package anew"
