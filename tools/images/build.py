# SPDX-License-Identifier: Apache-2.0
"""The one image of Dovetail's scheduler, agent and operator, built rootless, without a daemon and without a registry.

Rules: three layers, Debian's packages, libraries and Dovetail, so that a new release changes the last one alone. The
first two have the time of `debian.lock`, and the cache keeps their bytecode, and them compressed; the last has
SOURCE_DATE_EPOCH. The same commit and the same wheel give the same bytes. Of the extras `agent`, `dashboard` and
`views` are in it: `plots` would be 90 MiB, and decoders of images.
Sources: org.opencontainers.image.* of the OCI image specification's annotations.md.
"""

import posixpath
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct, msgpack

from tools.controlplane.binaries import Report
from tools.images import archive, cache, debian, python_packages, sbom, tree
from tools.images.archive import Image, Layer
from tools.images.interpreter import Interpreter
from tools.images.sbom import DebianComponent
from tools.images.system import COMMAND, USER, command_tree, system_tree
from tools.images.tree import Kind, Tree

STANDARD_LIBRARY = "usr/lib/python3.11"
CONFIG = {
    "Entrypoint": [f"/{COMMAND}"],
    "Env": [
        "PATH=/usr/bin",
        "LANG=C.UTF-8",
        # Everything has its bytecode, and the root may be read-only.
        "PYTHONDONTWRITEBYTECODE=1",
    ],
    "User": f"{USER}:{USER}",
    "WorkingDir": "/",
}


class Built(Struct, frozen=True):
    """archive: see `archive.archive`; sbom: a CycloneDX document; trees: the files by layer."""

    image: Image
    archive: bytes
    sbom: bytes
    trees: tuple[Tree, ...]

    @property
    def compressed_bytes(self) -> int:
        return sum(len(layer.compressed) for layer in self.image.layers)

    @property
    def unpacked_bytes(self) -> int:
        return sum(len(entry.content) for each in self.trees for entry in each.values())


class Parts(Struct, frozen=True):
    """What an image is made of. revision: the commit, "" if it is unknown."""

    wheel: Path
    epoch_s: int
    revision: str = ""
    mirrors: Sequence[str] = ()


def build(parts: Parts, name: str, report: Report) -> Built:
    """name: with a tag, such as dovetail:0.1.0. Raises PlaneUnavailable."""
    lock = debian.read_lock()
    packages = debian.packages_tree(lock.packages, parts.mirrors, report)
    wheels = python_packages.download()
    trees = [packages | system_tree(packages), python_packages.wheels_tree(wheels)]
    trees.append(python_packages.wheels_tree([parts.wheel]) | command_tree())
    lock_epoch_s = int(datetime.combine(lock.as_of, datetime.min.time(), UTC).timestamp())
    times = (lock_epoch_s, lock_epoch_s, parts.epoch_s)
    titles = (f"Debian {debian.SUITE}", "requirements/run.lock", parts.wheel.name)
    with TemporaryDirectory(prefix="dovetail-image-") as folder:
        root = Path(folder)
        tree.write(trees[0], root)
        interpreter = Interpreter(root)
        report("bytecode")
        standard = _lasting_bytecode(_modules(trees[0], STANDARD_LIBRARY), interpreter)
        tree.write(standard, root)
        trees[0] |= standard
        trees[1] |= _lasting_bytecode(_modules(trees[1], python_packages.SITE), interpreter)
        trees[2] |= interpreter.compile(_modules(trees[2], python_packages.SITE))
        layers = []
        for position, (each, time_s, title) in enumerate(zip(trees, times, titles, strict=True)):
            report(f"layer {position + 1} of {len(trees)}: {title}")
            content = tree.layer(each, time_s, tree.directories(*trees[:position]))
            layers.append(Layer(title, content, _compressed(content, interpreter, lasting=each is not trees[-1])))
    own = python_packages.distribution(parts.wheel)
    image = Image(debian.ARCHITECTURE, parts.epoch_s, tuple(layers), CONFIG, labels(own.version, parts))
    components = [_component(package, packages) for package in lock.packages]
    distributions = [own, *map(python_packages.distribution, wheels)]
    described = sbom.document(image, name.rsplit(":", 1)[0], components, distributions)
    return Built(image, archive.archive(image, name), described, tuple(trees))


def labels(version: str, parts: Parts) -> dict[str, str]:
    named = {
        "created": archive.time_text(parts.epoch_s),
        "title": "Dovetail",
        "description": "A GPU scheduler for Kubernetes: scheduler, node agent and operator",
        "licenses": "Apache-2.0",
        "version": version,
        "revision": parts.revision,
    }
    return {f"org.opencontainers.image.{key}": value for key, value in named.items() if value}


def _modules(each: Tree, folder: str) -> Tree:
    """The modules in a folder; a link stands for the module that it names."""
    paths = [path for path in each if path.startswith(f"{folder}/") and path.endswith(".py")]
    named = {path: posixpath.normpath(posixpath.join("/", path, "..", each[path].target)) for path in paths}
    return {path: each[named[path][1:]] if each[path].kind is Kind.LINK else each[path] for path in paths}


def _lasting_bytecode(modules: Tree, interpreter: Interpreter) -> Tree:
    kept = cache.cache_dir() / "bytecode" / f"{interpreter.bytecode_digest(modules)}.msgpack"
    if not kept.is_file():
        compiled = interpreter.compile(modules)
        cache.keep(kept, msgpack.encode({path: entry.content for path, entry in compiled.items()}))
    found = msgpack.decode(kept.read_bytes(), type=dict[str, bytes])
    return {path: tree.file(content) for path, content in found.items()}


def _compressed(content: bytes, interpreter: Interpreter, *, lasting: bool) -> bytes:
    if not lasting:
        return interpreter.compress(content)
    kept = cache.cache_dir() / "layers" / f"{interpreter.compressed_digest(content)}.tar.gz"
    if not kept.is_file():
        cache.keep(kept, interpreter.compress(content))
    return kept.read_bytes()


def _component(package: debian.Package, packages: Tree) -> DebianComponent:
    control = packages[f"var/lib/dpkg/status.d/{package.name}"].content
    source = debian.field(control, "Source").split(" ")[0] or package.name
    return DebianComponent(package, debian.field(control, "Version"), source)
