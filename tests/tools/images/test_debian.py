# SPDX-License-Identifier: Apache-2.0
"""Debian's packages: the lock, downloads that are compared with it, and what is read of a package."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from tools.controlplane.binaries import PlaneUnavailable
from tools.images import debian
from tools.images.debian import Package

CONTROL = b"Package: p\nVersion: 1:2-3\nPre-Depends: libc6 (>= 2.36)\nDepends: a | b (>= 1), c:any\n"


def member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


def tar(files: dict[str, bytes], mode: str) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=f"w:{mode}") as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def deb(files: dict[str, bytes], control: bytes = CONTROL) -> bytes:
    return b"!<arch>\n" + b"".join(
        (
            member("debian-binary", b"2.0\n"),
            member("control.tar.gz", tar({"./control": control}, "gz")),
            member("data.tar.xz", tar(files, "xz")),
        )
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def mirror(folder: Path, content: bytes) -> tuple[Package, str]:
    """A package, and the address of a mirror that has it."""
    path = "pool/p_2-3_amd64.deb"
    (folder / "mirror/pool").mkdir(parents=True)
    (folder / "mirror" / path).write_bytes(content)
    return Package("p", "2-3", hashlib.sha256(content).hexdigest(), len(content), path), f"file://{folder}/mirror"


def test_the_lock_names_exactly_the_packages_of_the_image() -> None:
    lock = debian.read_lock()
    assert tuple(package.name for package in lock.packages) == tuple(sorted(debian.PACKAGES))
    assert all(len(package.sha256) == 64 and package.path.startswith("pool/") for package in lock.packages)


@pytest.mark.parametrize("text", ["as-of 2026-01-31\none two three\n", "a 1 0 1 pool/a.deb\n", "as-of today\n"])
def test_a_lock_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    with pytest.raises(ValueError):
        debian.read_lock(tmp_path / "lock")


def test_a_package_has_its_control_file_and_its_files_without_manuals() -> None:
    content = deb({"./usr/share/man/man1/p.1": b"m", "./usr/share/doc/p/copyright": b"c", "./lib/p.so": b"s"})
    control, data = debian.members(content)
    assert control == CONTROL and set(data) == {"usr/share/man/man1/p.1", "usr/share/doc/p/copyright", "usr/lib/p.so"}
    assert debian.field(control, "Version") == "1:2-3" and debian.field(control, "Source") == ""
    assert debian.dependencies(control) == [["libc6"], ["a", "b"], ["c"]]


@pytest.mark.parametrize("content", [b"no archive", b"!<arch>\n" + member("debian-binary", b"2.0\n")])
def test_what_is_no_package_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no Debian package"):
        debian.members(content)


def test_in_the_image_are_no_manuals_shells_or_privileges_and_every_licence(tmp_path: Path) -> None:
    left = {
        "./usr/share/man/man1/p.1": b"m",
        "./bin/sh": b"",
        "./usr/sbin/p": b"",
        "./usr/share/doc/p/changelog.gz": b"",
    }
    kept = {"./usr/share/doc/p/copyright": b"c", "./usr/bin/python3.11": b"p", "./lib/x86_64-linux-gnu/p.so": b"s"}
    package, address = mirror(tmp_path, deb(left | kept))
    whole = debian.packages_tree([package], [address], lambda text: None)
    assert set(whole) == {
        "usr/share/doc/p/copyright", "usr/bin/python3.11", "usr/lib/x86_64-linux-gnu/p.so", "var/lib/dpkg/status.d/p",
    }  # fmt: skip


def test_a_download_is_kept_and_the_next_mirror_is_asked_when_one_lacks_it(tmp_path: Path) -> None:
    content = deb({})
    package, address = mirror(tmp_path, content)
    assert debian.fetch(package, [f"file://{tmp_path}/none", address]) == content
    assert debian.fetch(package, []) == content


def test_a_file_of_another_digest_is_refused_whatever_mirror_has_it(tmp_path: Path) -> None:
    package, address = mirror(tmp_path, deb({}))
    (tmp_path / "mirror" / package.path).write_bytes(deb({"./usr/lib/evil": b"e"}))
    with pytest.raises(PlaneUnavailable, match="another SHA-256"):
        debian.fetch(package, [address])


def test_a_damaged_file_of_the_cache_is_downloaded_again(tmp_path: Path) -> None:
    content = deb({})
    package, address = mirror(tmp_path, content)
    debian.fetch(package, [address])
    (kept,) = (tmp_path / "cache").rglob("*.deb")
    kept.write_bytes(b"damaged")
    assert debian.fetch(package, [address]) == content


def test_a_version_that_no_mirror_has_names_the_remedies(tmp_path: Path) -> None:
    package = Package("p", "2-3", "0" * 64, 1, "pool/p.deb")
    with pytest.raises(PlaneUnavailable, match=r"(?s)p 2-3 .*/none.*--mirror.*tools\.images lock"):
        debian.fetch(package, [f"file://{tmp_path}/none"])
