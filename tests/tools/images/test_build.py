# SPDX-License-Identifier: Apache-2.0
"""The image: small, the same bytes when built again, without a shell, and everything in it can be loaded."""

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.conftest import BuildImage, ImageBytes
from tests.tools.images.test_archive import faults
from tools.images import build, cache, debian, tree
from tools.images.build import STANDARD_LIBRARY, Built, Parts
from tools.images.interpreter import Interpreter
from tools.images.python_packages import SITE
from tools.images.tree import Kind, Tree

pytestmark = pytest.mark.slow
MIB = 1 << 20
LIBRARIES = "usr/lib/x86_64-linux-gnu"


@pytest.fixture(scope="module")
def image(build_image: BuildImage, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built with no bytecode that was kept. Downloads are shared, and so are compressed layers: by all that they
    depend on, bytecode too."""
    downloads, empty = cache.cache_dir(), tmp_path_factory.mktemp("cache")
    (empty / "dovetail/images").mkdir(parents=True)
    for name in ("debian", "wheels", "layers"):
        (downloads / name).mkdir(parents=True, exist_ok=True)
        (empty / "dovetail/images" / name).symlink_to(downloads / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(empty))
        return build_image()


@pytest.fixture(scope="module")
def files(image: Built) -> Tree:
    """What a container of the image sees."""
    whole: Tree = {}
    for layer in image.image.layers:
        with tarfile.open(fileobj=io.BytesIO(layer.content)) as archive:
            whole |= tree.from_tar(archive)
    return whole


@pytest.fixture(scope="module")
def interpreter(files: Tree, tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    root = tmp_path_factory.mktemp("root")
    tree.write(files, root)
    return Interpreter(root)


def test_bytecode_is_kept_by_all_that_it_depends_on(interpreter: Interpreter) -> None:
    trees: list[Tree] = [{"a.py": tree.file("1")}, {"a.py": tree.file("2")}, {"b.py": tree.file("1")}]
    trees += [{"a.py": tree.file("1"), "b.py": tree.file("")}, {"a.py": tree.file("1b.py")}]
    assert len({interpreter.bytecode_digest(each) for each in trees}) == len(trees)


def test_compressed_layers_are_kept_by_all_that_they_depend_on(
    files: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for number, changed in enumerate(("", "usr/bin/python3.11", f"{LIBRARIES}/libz.so.1.2.13")):
        root = tmp_path / str(number)
        parts = {path: entry for path, entry in files.items() if path.startswith(("usr/bin/", f"{LIBRARIES}/libz"))}
        if changed:
            parts[changed] = tree.file(b"another")
        tree.write(parts, root)
        digests += [Interpreter(root).compressed_digest(content) for content in (b"1", b"2")]
    monkeypatch.setattr("tools.images.interpreter._COMPRESS", "in another way")
    digests.append(Interpreter(tmp_path / "0").compressed_digest(b"1"))
    assert len(set(digests)) == len(digests)


def test_what_is_compressed_has_no_time_and_no_name(interpreter: Interpreter) -> None:
    """Two builds that share a compressed layer would not show it."""
    assert interpreter.compress(b"content")[:9] == b"\x1f\x8b\x08" + bytes(6)


def test_it_is_small(image: Built) -> None:
    assert image.unpacked_bytes < 250 * MIB and image.compressed_bytes < 80 * MIB
    assert len(image.archive) - image.compressed_bytes < MIB


def test_two_builds_are_the_same_bytes(image: Built, image_bytes: ImageBytes) -> None:
    """The other one may be of another process."""
    assert image.archive == image_bytes.archive and image.sbom == image_bytes.sbom


def test_it_runs_as_a_user_without_rights_and_has_no_shell_and_no_packager(image: Built, files: Tree) -> None:
    assert image.image.config["User"] == "65532:65532"
    programs = [path for path, entry in files.items() if entry.kind is Kind.FILE and entry.mode & 0o111]
    assert sorted(path for path in programs if re.search(r"(^|/)s?bin/", path)) == [
        "usr/bin/dovetail",
        "usr/bin/python3.11",
    ]
    assert not [path for path, entry in files.items() if entry.mode & 0o6000]
    writable = {path for path, entry in files.items() if entry.kind is not Kind.LINK and entry.mode & 0o002}
    assert writable == {"tmp", "var/tmp"}


def test_it_has_the_labels_of_the_specification(image: Built) -> None:
    assert {"created", "title", "description", "licenses", "version"} == {
        label.removeprefix("org.opencontainers.image.") for label in image.image.labels
    }
    assert build.labels("1", Parts(Path("w"), 0, "abc"))["org.opencontainers.image.revision"] == "abc"


def test_a_layer_has_one_time_and_no_layer_changes_anothers_files(image: Built) -> None:
    seen: set[str] = set()
    for layer in image.image.layers:
        with tarfile.open(fileobj=io.BytesIO(layer.content)) as archive:
            members = archive.getmembers()
        assert len({member.mtime for member in members}) == 1
        names = {member.name for member in members}
        assert not names & seen
        seen |= names


def test_its_sbom_has_each_package_and_each_distribution_that_is_in_it(image: Built, files: Tree) -> None:
    assert faults(image.sbom) == []
    components = json.loads(image.sbom)["components"]
    packages = {PurePosixPath(path).name for path in files if path.startswith("var/lib/dpkg/status.d/")}
    found = {path.split("/")[5] for path in files if path.startswith(SITE) and path.endswith(".dist-info/METADATA")}
    assert {component["name"] for component in components if component["purl"].startswith("pkg:deb/")} == packages
    assert len([component for component in components if component["purl"].startswith("pkg:pypi/")]) == len(found)
    # Packages of one source share a folder by a link.
    folders = {package: f"usr/share/doc/{package}" for package in packages}
    shared = {package: files[path].target or package for package, path in folders.items() if path in files}
    assert {package for package in packages if f"usr/share/doc/{shared[package]}/copyright" not in files} == set()


def test_what_a_package_depends_on_is_there_or_left_out_for_a_reason(files: Tree) -> None:
    lacking = {
        tuple(group)
        for package in debian.PACKAGES
        for group in debian.dependencies(files[f"var/lib/dpkg/status.d/{package}"].content)
        if not {*debian.PACKAGES, *debian.LEFT_OUT} & set(group)
    }
    assert lacking == set()


def needed(entry: tree.Entry) -> Iterator[str]:
    """The libraries that an ELF file names."""
    for section in ELFFile(io.BytesIO(entry.content)).iter_sections():
        if isinstance(section, DynamicSection):
            yield from (tag.needed for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED")


def test_every_library_finds_all_that_it_needs(files: Tree) -> None:
    binaries = {path: entry for path, entry in files.items() if entry.content.startswith(b"\x7fELF")}
    assert len(binaries) > 100
    lacking = {
        (path, name)
        for path, entry in binaries.items()
        for name in needed(entry)
        # Of the C library's folder, or bundled with the wheel, which names its own folder (RPATH).
        if f"{LIBRARIES}/{name}" not in files and not any(other.endswith(f".libs/{name}") for other in files)
    }
    assert lacking == set()


def test_every_module_has_bytecode(files: Tree) -> None:
    modules = {path for path in files if path.endswith(".py") and path.startswith((STANDARD_LIBRARY, SITE))}
    compiled = {tree.module_of(path) for path in files if path.endswith(".pyc")}
    assert len(modules) > 1000
    assert modules == compiled


IMPORT_ALL = """
import importlib, pkgutil, sys
import dovetail, kubecel
failed = []
for package in (dovetail, kubecel):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            failed.append(f"{module.name}: {error.name}")
print(*sorted(failed), sep="\\n")
"""


def test_every_module_can_be_imported_but_those_of_extras(interpreter: Interpreter) -> None:
    assert interpreter.run("-c", IMPORT_ALL).split("\n")[:-1] == [
        "dovetail.plane.mcp.server: mcp_types",
        "dovetail.plane.mcp.transports: mcp",
        *[
            f"dovetail.{name}: matplotlib"
            for name in ("sim.plots", "views.fabric_plot", "views.spot_plot", "views.topology_plot")
        ],
    ]


def test_the_command_runs_with_all_compiled_parts(interpreter: Interpreter, image: Built) -> None:
    (command,) = image.image.config["Entrypoint"]
    assert interpreter.run(interpreter.path(command), "--version") == "dovetail 0.1.0 (compiled core, native kernel)\n"
