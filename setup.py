# SPDX-License-Identifier: Apache-2.0
"""The native parts of the core, built where a C compiler is at hand; without one Python and numpy do their work.

All else about the package is in pyproject.toml. There are two: the kernel, written in C, and the modules named in
COMPILED, translated by mypyc, which takes a minute: DOVETAIL_COMPILE=0 in the environment leaves them as they are. Both
are known by the digest of their sources, by which `dovetail.__native__` knows whether they were built from what is
there.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
PLACING = "src/dovetail/core/placing"
sys.path[:0] = [str(HERE / "src" / "dovetail"), str(HERE / PLACING)]
import layout  # noqa: E402
from __native__ import COMPILED, KERNEL_SOURCES, digest, group  # noqa: E402


class Build(build_ext):
    """Translates before it compiles; commands that only ask for metadata do not wait for that."""

    def finalize_options(self) -> None:
        self.distribution.ext_modules = [kernel(), *compiled()]
        # What an earlier build left may be of another source.
        self.force = True
        super().finalize_options()

    def build_extensions(self) -> None:
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "layout.h").write_text(layout.header())
        self.compiler.add_include_dir(str(folder))
        compile_together(self.compiler)
        super().build_extensions()


def compile_together(compiler: Any) -> None:
    """Let it compile several files of an extension at a time: mypyc's is one of two hundred. A container often has
    memory for a few compilers only, whatever the cores of its machine."""
    compile_all, compile_one = compiler.compile, compiler._compile

    def compile_some(*arguments: Any, **options: Any) -> Any:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            begun = list[Future[Any]]()
            compiler._compile = lambda *file: begun.append(pool.submit(compile_one, *file))
            objects = compile_all(*arguments, **options)
            for one in begun:
                one.result()
        return objects

    compiler.compile = compile_some


def kernel() -> Extension:
    return Extension(
        "dovetail.core.placing._kernel",
        [f"{PLACING}/kernel.c"],
        define_macros=[("SOURCE_DIGEST", f'"{digest(HERE / PLACING / source for source in KERNEL_SOURCES)}"')],
        optional=True,
        py_limited_api=True,
    )


@cache
def compiled() -> tuple[Extension, ...]:
    """The modules that mypyc translates; none where it is not there, or cannot."""
    if os.environ.get("DOVETAIL_COMPILE") == "0":
        return ()
    try:
        from mypyc.build import mypycify
    except ImportError:
        print("mypyc is not there: of the core only the kernel is compiled", file=sys.stderr)
        return ()
    for built in (*(HERE / "src").glob("*__mypyc*"), *(HERE / "src").glob(f"**/*{EXTENSION_SUFFIXES[0]}")):
        built.unlink(missing_ok=True)
    sources = [f"src/dovetail/{name.replace('.', '/')}.py" for name in COMPILED]
    try:
        modules: list[Extension] = mypycify(
            ["--config-file=", *sources], opt_level="2", debug_level="0", multi_file=True, group_name=group()
        )
    except SystemExit as error:
        print(f"mypyc cannot translate the core: {error}", file=sys.stderr)
        return ()
    for module in modules:
        module.optional = True
    return tuple(modules)


setup(ext_modules=[kernel()], cmdclass={"build_ext": Build})
