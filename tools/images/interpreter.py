# SPDX-License-Identifier: Apache-2.0
"""The image's own Python, run on this machine from a folder: it compiles bytecode and compresses layers.

Rules: bytecode is valid for one version of Python, and zlib's output differs between its versions. As both come from
the image, the result does not depend on what this machine has. Needs no root: the image's dynamic loader starts the
program. The bytecode is not compared with the time of its source (unchecked hash, PEP 552), as nothing in the image
changes.
"""

import hashlib
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.controlplane.binaries import PlaneUnavailable
from tools.controlplane.children import tail
from tools.images import tree
from tools.images.tree import Tree

_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_PROGRAM = "usr/bin/python3.11"
_ZLIB = f"{_LIBRARIES}/libz.so.1"
"""Python's module zlib is a part of its program, and loads this library."""
_COMPILE = """\
import compileall, py_compile, sys
root = sys.argv[1]
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
sys.exit(not compileall.compile_dir(root, maxlevels=99, quiet=1, stripdir=root, prependdir="/", invalidation_mode=mode))
"""
_COMPRESS = """\
import sys, zlib
packer = zlib.compressobj(6, zlib.DEFLATED, 31)
while block := sys.stdin.buffer.read(1 << 20):
    sys.stdout.buffer.write(packer.compress(block))
sys.stdout.buffer.write(packer.flush())
"""


class Interpreter:
    """root: a folder that has the image's files. Raises PlaneUnavailable where the programs of the image cannot run."""

    def __init__(self, root: Path) -> None:
        self._root = root
        libraries = root / _LIBRARIES
        self._argv = [libraries / "ld-linux-x86-64.so.2", "--library-path", libraries, root / _PROGRAM]

    def compile(self, modules: Tree) -> Tree:
        """The bytecode of modules, by path in the image."""
        with TemporaryDirectory(prefix="dovetail-modules-") as folder:
            root = Path(folder)
            tree.write(modules, root)
            self._run(_COMPILE, str(root))
            return {str(path.relative_to(root)): tree.file(path.read_bytes()) for path in sorted(root.rglob("*.pyc"))}

    def bytecode_digest(self, modules: Tree) -> str:
        """The SHA-256 of what their bytecode depends on: this Python, how it compiles, and the modules."""
        total = hashlib.sha256((self._root / _PROGRAM).read_bytes() + _COMPILE.encode())
        for path, entry in sorted(modules.items()):
            total.update(f"{path}\0{len(entry.content)}\0".encode() + entry.content)
        return total.hexdigest()

    def compress(self, content: bytes) -> bytes:
        """In the format of gzip, without a time and a name."""
        return self._run(_COMPRESS, content=content)

    def compressed_digest(self, content: bytes) -> str:
        """The SHA-256 of what the compressed content depends on: this Python, its zlib, how that is called, and the
        content."""
        total = hashlib.sha256(b"".join((self._root / name).read_bytes() for name in (_PROGRAM, _ZLIB)))
        total.update(_COMPRESS.encode())
        total.update(content)
        return total.hexdigest()

    def path(self, path: str) -> str:
        """A path of the image on this machine."""
        return str(self._root / path.lstrip("/"))

    def run(self, *arguments: str) -> str:
        """The output of the image's Python with these arguments."""
        return self._execute([*map(str, self._argv), *arguments]).decode()

    def _run(self, program: str, *arguments: str, content: bytes = b"") -> bytes:
        # -S: no site-packages; the folder of this machine's user stays out.
        return self._execute([*map(str, self._argv), "-S", "-c", program, *arguments], content)

    def _execute(self, argv: list[str], content: bytes = b"") -> bytes:
        environment = {"PYTHONHOME": str(self._root / "usr"), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(argv, input=content, env=environment, cwd="/", capture_output=True, check=True)
        except OSError as error:
            raise PlaneUnavailable(f"the image's Python does not run on this machine: {error}") from error
        except subprocess.CalledProcessError as error:
            detail = tail((error.stdout[-4000:] + error.stderr).decode(errors="replace"))
            raise PlaneUnavailable(f"the image's Python ended with {error.returncode}:\n{detail}") from error
        return done.stdout
