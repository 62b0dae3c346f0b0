# SPDX-License-Identifier: Apache-2.0
"""Files of an image in memory, and a layer of them as a tar archive.

Rules: a tree is the same whatever user builds it, on whatever file system: owners and modes are fields, and are not
read from files. In an archive the entries are sorted, all have one time, and owners are numbers without names. Paths
have no leading slash. Debian's merged /usr holds: what a package has in bin, lib, lib64 or sbin is in usr.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path, PurePosixPath

from msgspec import Struct

_MERGED = ("bin", "lib", "lib64", "sbin")


class Kind(Enum):
    DIRECTORY = tarfile.DIRTYPE
    FILE = tarfile.REGTYPE
    LINK = tarfile.SYMTYPE


class Entry(Struct, frozen=True):
    """One path. content: of a file; target: of a symbolic link; owner: number of user and group."""

    kind: Kind
    mode: int
    content: bytes = b""
    target: str = ""
    owner: int = 0


Tree = dict[str, Entry]
"""By path. Directories above an entry may be missing; `layer` adds them."""

DIRECTORY = Entry(Kind.DIRECTORY, 0o755)


def file(content: bytes | str, mode: int = 0o644) -> Entry:
    return Entry(Kind.FILE, mode, content if isinstance(content, bytes) else content.encode())


def link(target: str) -> Entry:
    return Entry(Kind.LINK, 0o777, target=target)


def merged(path: str) -> str:
    """The path in a merged /usr."""
    first, slash, rest = path.partition("/")
    return f"usr/{first}{slash}{rest}" if first in _MERGED and rest else path


def from_tar(archive: tarfile.TarFile) -> Tree:
    """The entries of an archive, without their times and owners. Raises ValueError for kinds that an image lacks."""
    tree: Tree = {}
    for member in archive:
        path = merged(str(PurePosixPath(member.name)).lstrip("/"))
        if path == ".":
            continue
        if member.isdir():
            tree[path] = Entry(Kind.DIRECTORY, member.mode & 0o1777)
        elif member.issym():
            tree[path] = link(member.linkname)
        elif member.isreg():
            content = archive.extractfile(member)
            assert content is not None, member.name
            # Set-user-ID bits would be privileges that the image does not need.
            tree[path] = file(content.read(), member.mode & 0o777)
        elif member.islnk():
            tree[path] = tree[merged(str(PurePosixPath(member.linkname)).lstrip("/"))]
        else:
            raise ValueError(f"{member.name} is neither a file, a directory nor a link")
    return tree


def layer(tree: Tree, epoch_s: int, below: Iterable[str] = ()) -> bytes:
    """The tar archive of a tree; all times are `epoch_s`.

    below: directories of the layers below, which are not repeated.
    """
    whole = dict(tree)
    present = set(below)
    for path in tree:
        for parent in _parents(path):
            if parent in whole:
                # Those above it come with it.
                break
            if parent not in present:
                whole[parent] = DIRECTORY
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, entry in sorted(whole.items()):
            info = tarfile.TarInfo(path)
            info.type, info.mode, info.mtime = entry.kind.value, entry.mode, epoch_s
            info.size, info.linkname = len(entry.content), entry.target
            info.uid = info.gid = entry.owner
            archive.addfile(info, io.BytesIO(entry.content))
    return target.getvalue()


def directories(*trees: Tree) -> set[str]:
    """The paths of all directories of these trees, those above their entries too."""
    found = {path for tree in trees for path, entry in tree.items() if entry.kind is Kind.DIRECTORY}
    return found.union(*(_parents(path) for tree in trees for path in tree))


def write(tree: Tree, folder: Path) -> None:
    """Write the tree into a folder, owned by this user. Links to absolute paths become relative ones."""
    for path, entry in sorted(tree.items()):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        match entry.kind:
            case Kind.DIRECTORY:
                target.mkdir(exist_ok=True)
            case Kind.LINK:
                up = "../" * (len(PurePosixPath(path).parts) - 1)
                target.symlink_to(f"{up}{entry.target[1:]}" if entry.target.startswith("/") else entry.target)
            case Kind.FILE:
                target.write_bytes(entry.content)
                target.chmod(entry.mode)


def module_of(bytecode: str) -> str:
    """The path of the source of a file in __pycache__ (PEP 3147)."""
    folder, _, name = bytecode.rpartition("/__pycache__/")
    return f"{folder}/{name.split('.')[0]}.py"


def _parents(path: str) -> Iterator[str]:
    """The directories above a path, the deepest first."""
    while path := path.rpartition("/")[0]:
        yield path
