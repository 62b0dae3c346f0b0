# SPDX-License-Identifier: Apache-2.0
"""The native kernel of the core, built where a compiler is at hand; without one everything runs on numpy alone.

All else about the package is in pyproject.toml. Beside the kernel goes a manifest with the digest of its source, by
which `dovetail.__native__` knows whether it was built from what is there.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "src"))
from dovetail.__native__ import KERNEL, write_manifest  # noqa: E402

SOURCE = "core/placing/kernel.c"


class BuildKernel(build_ext):
    def run(self) -> None:
        built = Path(self.get_ext_fullpath("dovetail._native._kernel"))
        built.parent.mkdir(parents=True, exist_ok=True)
        super().run()
        if built.exists():
            write_manifest(built.parent / "kernel.json", {KERNEL: built.name}, ROOT / "src" / "dovetail", [SOURCE])


setup(
    cmdclass={"build_ext": BuildKernel},
    ext_modules=[
        Extension("dovetail._native._kernel", [f"src/dovetail/{SOURCE}"], optional=True, py_limited_api=True),
    ],
)
