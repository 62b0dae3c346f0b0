# SPDX-License-Identifier: Apache-2.0
"""Debian's packages of the image: which, pinned by version and digest, and what of them is used.

Rules: `debian.lock` has for each package its version, SHA-256, size and path in Debian's archive; what is downloaded
is compared with that. Mirrors are those of this machine's apt, or named on the command line: Debian's mirrors drop a
version soon after the next one, so an older lock needs a mirror of its date (a snapshot). Nothing is executed: what
maintainer scripts would do that the image needs, `system.py` does. No shell, no apt, no dpkg: `LEFT_OUT` has, by
package, dependencies that the image does without.
"""

import hashlib
import io
import re
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from email.parser import HeaderParser
from functools import cache
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from tools.controlplane.binaries import PlaneUnavailable, Report
from tools.images import tree
from tools.images.cache import cache_dir, keep
from tools.images.tree import Tree

LOCK = Path(__file__).with_name("debian.lock")
SUITE, RELEASE, ARCHITECTURE = "bookworm", "12", "amd64"
PACKAGES = (
    "base-files", "ca-certificates", "gcc-12-base", "libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8",
    "libgcc-s1", "liblzma5", "libpython3.11-minimal", "libpython3.11-stdlib", "libsqlite3-0", "libssl3", "libstdc++6",
    "libuuid1", "python3.11-minimal", "zlib1g",
)  # fmt: skip
_SCRIPTS = "only for maintainer scripts"
_UNUSED = "of modules of the standard library that are left out"
LEFT_OUT = {
    "awk": _SCRIPTS,
    "debconf": _SCRIPTS,
    "openssl": _SCRIPTS,
    "libdb5.3": _UNUSED,
    "libncursesw6": _UNUSED,
    "libnsl2": _UNUSED,
    "libreadline8": _UNUSED,
    "libtinfo6": _UNUSED,
    "libtirpc3": _UNUSED,
    "media-types": "Python has a table of its own",
}
"""Dependencies of these packages that the image lacks, with the reason."""
_MODULES_LEFT_OUT = ("_curses", "_curses_panel", "_dbm", "nis", "readline")
_UNUSED_PATHS = re.compile(
    r"usr/share/(man|lintian|locale|info|bug|doc-base|applications|pixmaps|binfmts|menu)(/|$)"
    # Licences have to come along.
    r"|usr/share/doc/[^/]+/(?!copyright$)"
    # Encodings of texts in other character sets: 8 MB that only iconv reads.
    r"|usr/lib/x86_64-linux-gnu/gconv(/|$)"
    r"|usr/lib/python3[.]11/(lib-dynload/(" + "|".join(_MODULES_LEFT_OUT) + r")[.].*|(curses|dbm)(/|$))"
    r"|usr/sbin/|usr/bin/(?!python3[.]11$)|usr/share/base-files|usr/lib/systemd|usr/games"
    r"|etc/(default|skel|update-motd[.]d|profile[.]d|issue|motd|dpkg|ca-certificates|kernel|terminfo)"
    r"|(home|boot|media|mnt|opt|srv|root|usr/local|usr/src|usr/include|var/backups|var/local|var/lock|var/mail|var/spool)(/|$)"
)
_TIMEOUT_S = 60


class Package(Struct, frozen=True):
    """One line of the lock. path: in Debian's archive, below the address of a mirror."""

    name: str
    version: str
    sha256: str
    size: int
    path: str


class VersionGone(PlaneUnavailable):
    """No mirror has a pinned version any more: the next one has replaced it."""


class Lock(Struct, frozen=True):
    """as_of: the day on which the versions were chosen; files of the packages have its time in the image."""

    as_of: date
    packages: tuple[Package, ...]


def read_lock(path: Path = LOCK) -> Lock:
    """Raises ValueError for a line that is none."""
    as_of, packages = None, []
    for line in path.read_text().splitlines():
        match line.split():
            case []:
                continue
            case ["#", *_]:
                continue
            case ["as-of", day]:
                as_of = date.fromisoformat(day)
            case [name, version, sha256, size, archive_path]:
                packages.append(Package(name, version, sha256, int(size), archive_path))
            case _:
                raise ValueError(f"{path}: no package: {line}")
    if as_of is None:
        raise ValueError(f"{path}: there is no line as-of")
    return Lock(as_of, tuple(packages))


@cache
def mirrors() -> tuple[str, ...]:
    """The addresses that this machine's apt is set up with; none where there is no apt."""
    if not shutil.which("apt-get"):
        return ()
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
    return tuple(dict.fromkeys(address.rstrip("/") for address in found))


def fetch(package: Package, addresses: Sequence[str]) -> bytes:
    """The package's file, from the cache or from the first mirror that has it; without `addresses` the mirrors of this
    machine's apt, which takes half a second to name them.

    Raises VersionGone if every mirror answers that there is no such file, PlaneUnavailable for other failures.
    """
    kept = cache_dir() / "debian" / f"{package.sha256}.deb"
    if kept.is_file() and hashlib.sha256(content := kept.read_bytes()).hexdigest() == package.sha256:
        return content
    addresses = addresses or mirrors()
    failures, gone = [], bool(addresses)
    for address in addresses:
        try:
            with urllib.request.urlopen(f"{address}/{package.path}", timeout=_TIMEOUT_S) as answer:
                content = bytes(answer.read(package.size + 1))
        except (OSError, ValueError) as error:
            failures.append(f"  {address}: {error}")
            gone &= getattr(error, "code", None) == HTTPStatus.NOT_FOUND
            continue
        if hashlib.sha256(content).hexdigest() != package.sha256:
            failures.append(f"  {address}: the file has another SHA-256 than {LOCK.name}")
            gone = False
            continue
        keep(kept, content)
        return content
    raise (VersionGone if gone else PlaneUnavailable)(
        f"cannot download {package.name} {package.version} of Debian {SUITE}:\n"
        + ("\n".join(failures) or "  this machine's apt names no mirrors")
        + "\nName a mirror that has this version with --mirror (a snapshot has old ones), or choose the versions of "
        "today: python -m tools.images lock"
    )


def packages_tree(packages: Iterable[Package], addresses: Sequence[str], report: Report) -> Tree:
    """What the image has of these packages. Raises PlaneUnavailable."""
    whole: Tree = {}
    for package in packages:
        report(f"Debian: {package.name} {package.version}")
        control, data = members(fetch(package, addresses))
        whole |= {path: entry for path, entry in data.items() if not _UNUSED_PATHS.match(path)}
        # Scanners for vulnerabilities read it, as in other images without dpkg.
        whole[f"var/lib/dpkg/status.d/{package.name}"] = tree.file(control)
    return whole


def members(deb: bytes) -> tuple[bytes, Tree]:
    """The control file and the files of a .deb (deb(5): an ar archive of two tar archives). Raises ValueError."""
    parts = dict(_ar(deb))
    opened = {}
    for wanted in ("control.tar", "data.tar"):
        name = next((name for name in parts if name.startswith(wanted)), "")
        if not name:
            raise ValueError(f"no Debian package: it has no {wanted}")
        with tarfile.open(fileobj=io.BytesIO(parts[name])) as archive:
            opened[wanted] = tree.from_tar(archive)
    return opened["control.tar"]["control"].content, opened["data.tar"]


def _ar(content: bytes) -> Iterator[tuple[str, bytes]]:
    if not content.startswith(b"!<arch>\n"):
        raise ValueError("no Debian package: it is no ar archive")
    position = 8
    while position < len(content):
        header = content[position : position + 60]
        size = int(header[48:58])
        yield header[:16].decode().strip().rstrip("/"), content[position + 60 : position + 60 + size]
        position += 60 + size + size % 2


def field(control: bytes, name: str) -> str:
    """A field of a control file; "" if it is absent."""
    return str(HeaderParser().parsestr(control.decode()).get(name, ""))


def dependencies(control: bytes) -> list[list[str]]:
    """What a package depends on: of each element of the outer list one of the inner has to be there."""
    listed = ", ".join(filter(None, (field(control, name) for name in ("Pre-Depends", "Depends"))))
    return [
        [re.split(r"[ :(]", alternative.strip())[0] for alternative in group.split("|")]
        for group in listed.split(",")
        if group.strip()
    ]


def newest(today: date) -> str:
    """The text of a lock of what this machine's apt has of `PACKAGES`, which has to be Debian of this suite.

    Raises PlaneUnavailable.
    """
    prefixes = [f"{address}/" for address in mirrors()]
    argv = ["apt-get", "download", "--print-uris", f"--target-release={SUITE}*", *PACKAGES]
    try:
        printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or error
        raise PlaneUnavailable(f"apt cannot be asked for versions (apt-get update before?): {detail}") from error
    lines = []
    for address, size, sha256 in re.findall(r"^'([^']+)' \S+ (\d+) SHA256:(\S+)$", printed, re.MULTILINE):
        path = next((address.removeprefix(prefix) for prefix in prefixes if address.startswith(prefix)), "")
        name, version, _ = unquote(unquote(path.rsplit("/", 1)[-1])).split("_")
        lines.append(f"{name} {version} {sha256} {size} {path}\n")
    if len(lines) != len(PACKAGES):
        raise PlaneUnavailable(
            f"apt names {len(lines)} of {len(PACKAGES)} packages; is this Debian {SUITE}?\n{printed}"
        )
    return (
        f"# Debian {SUITE} {ARCHITECTURE}: name, version, SHA-256, size, path. By python -m tools.images lock.\n"
        f"as-of {today}\n" + "".join(sorted(lines))
    )
