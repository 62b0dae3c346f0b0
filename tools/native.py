# SPDX-License-Identifier: Apache-2.0
"""Compile the modules of the core that every decision runs through: `python -m tools.native` (`make native`).

mypyc compiles them from the very Python sources, by their types; it takes a compiler and a minute or two. What comes
out goes into `dovetail/_native` with a manifest, and runs as long as the core's sources are the same
(`dovetail.__native__`).

What mypyc does otherwise than Python, and the core therefore does not rest on: a tuple of fixed length has no identity
(compare with ==), a generator expression may be worked out at once (where that matters a function yields), and classes
cannot be changed from outside. Enums with an `__init__` of their own cannot be compiled: `reasons` is not.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from mypyc.build import mypycify
from setuptools import setup

from dovetail.__native__ import BUILDS, HERE, write_manifest

HOT = (
    "attempt", "cycle", "decisions", "eligible", "failures", "labels", "making_room", "model", "pending", "roster",
    "state",
    "cluster/cluster", "cluster/columns", "cluster/fabric", "cluster/gpus", "cluster/journal", "cluster/kubelets",
    "cluster/nodes", "cluster/peers", "cluster/placement", "cluster/shapes", "cluster/shares",
    "placing/backfill", "placing/feasibility", "placing/gangs", "placing/kernel", "placing/links", "placing/pods",
    "placing/rows", "placing/scores",
    "sharing/accounts", "sharing/dues", "sharing/ledger", "sharing/meter", "sharing/order", "sharing/records",
    "sharing/shares", "sharing/tree",
)  # fmt: skip
SETTINGS = "[mypy]\nstrict = True\nignore_missing_imports = True\n"
NAME = "core"


def compile_into(folder: Path) -> None:
    """Compiled modules of the names that they have, below the folder."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch, "mypy.ini")
        settings.write_text(SETTINGS)
        # Names of modules follow from paths, seen from here.
        os.chdir(HERE.parent)
        files = [f"{HERE.name}/core/{name}.py" for name in HOT]
        target = str(Path(scratch, "c"))
        modules = mypycify([f"--config-file={settings}", *files], opt_level="2", debug_level="0", target_dir=target)
        arguments = ["-q", "build_ext", "--build-lib", str(folder), "--build-temp", str(Path(scratch, "o"))]
        setup(name="dovetail-core", ext_modules=modules, script_args=arguments)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        compile_into(folder)
        built = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
        shutil.rmtree(BUILDS / NAME, ignore_errors=True)
        shutil.copytree(folder, BUILDS / NAME)
    modules = {".".join((*file.parent.parts, file.name.split(".")[0])): f"{NAME}/{file}" for file in built}
    sources = [
        str(file.relative_to(HERE)) for file in (HERE / "core").rglob("*.py*") if "__pycache__" not in file.parts
    ]
    write_manifest(BUILDS / f"{NAME}.json", modules, HERE, sources)
    print(f"compiled {len(HOT)} modules into {BUILDS / NAME}", file=sys.stderr)


if __name__ == "__main__":
    main()
