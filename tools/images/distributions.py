# SPDX-License-Identifier: Apache-2.0
"""Dovetail's source distribution, and its wheel with compiled parts.

Rules: the source distribution is built from a copy of what git knows or would add, and the wheel from the source
distribution: it has all that a build needs. Both are the same bytes when built again: times are SOURCE_DATE_EPOCH,
and the libraries have no debug symbols, no paths of this machine and no RPATH. auditwheel names the oldest C library
that the wheel works with, which depends on the compiler and the C library of this machine; it fails for a library
that is not of the manylinux standard.
"""

import gzip
import hashlib
import io
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.controlplane.binaries import PlaneUnavailable, Report
from tools.controlplane.children import tail
from tools.images.cache import cache_dir, keep, only_builder

ROOT = Path(__file__).parents[2]
# The symbolic link to deploy/ in the package needs that folder beside it.
_PARTS = ("LICENSE", "NOTICE", "README.md", "deploy", "pyproject.toml", "setup.py", "src")
_COMPILER_VARIABLES = (
    *("AR", "ARFLAGS", "ARCHFLAGS", "CC", "CPP", "CPPFLAGS", "CXX", "LDFLAGS"),
    *("C_INCLUDE_PATH", "CPATH", "LIBRARY_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH"),
)
"""What the compiler reads of the environment. CFLAGS and LDSHARED are not among them: a build has its own."""
_BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def epoch_s(root: Path = ROOT) -> int:
    """SOURCE_DATE_EPOCH, else the time of the last commit, else 0."""
    if named := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(named)
    shown = _git(root, "log", "-1", "--format=%ct")
    return int(shown) if shown else 0


def revision(root: Path = ROOT) -> str:
    """The commit, with "-dirty" where files differ from it; "" without git."""
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if commit and changed else commit


def build_sdist(target: Path, epoch: int, root: Path = ROOT) -> Path:
    """Build the source distribution into the folder `target`. Raises PlaneUnavailable."""
    with TemporaryDirectory(prefix="dovetail-sdist-") as folder:
        copy, built = Path(folder) / "source", Path(folder) / "built"
        _copy(root, copy)
        # Without compiled parts mypyc has nothing to translate for a list of files.
        name = _hook("build_sdist", copy, built, {"DOVETAIL_COMPILE": "0"})
        target.mkdir(parents=True, exist_ok=True)
        result = target / name
        result.write_bytes(_with_one_time((built / name).read_bytes(), epoch))
    return result


def build_wheel(sdist: Path, target: Path, epoch: int, report: Report, *, compiled: bool = True) -> Path:
    """Build the manylinux wheel of a source distribution into the folder `target`; compiled: with the core, a minute.

    Raises PlaneUnavailable, also if no compiled part could be built.
    """
    report("compiling the core (a minute)" if compiled else "building the wheel")
    with TemporaryDirectory(prefix="dovetail-wheel-") as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (source,) = (path for path in Path(folder).iterdir() if path.is_dir())
        built = Path(folder) / "built"
        name = _hook("build_wheel", source, built, _compiler(source, epoch) | {"DOVETAIL_COMPILE": str(int(compiled))})
        if name.endswith("-any.whl"):
            raise PlaneUnavailable(f"{name} has no compiled parts: is there a C compiler?")
        # setuptools goes on without what it cannot build.
        if compiled and not _has_core(built / name):
            raise PlaneUnavailable(f"{name} has no compiled core: is mypy there, in the version of pyproject.toml?")
        repaired = Path(folder) / "repaired"
        argv = [sys.executable, "-m", "auditwheel", "repair", f"--wheel-dir={repaired}", str(built / name)]
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PATH": _path()}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PlaneUnavailable(f"auditwheel refuses {name}:\n{tail(done.stderr)}")
        (wheel,) = repaired.glob("*.whl")
        target.mkdir(parents=True, exist_ok=True)
        result = target / wheel.name
        result.write_bytes(wheel.read_bytes())
    return result


def kept_wheel(report: Report) -> Path:
    """The compiled wheel of the working tree from the cache, where it is kept by the digest of its sources and of the
    variables of its compiler, for this Python and this kind of machine, which its name has.

    Raises PlaneUnavailable."""
    # One that is there is taken also while a wheel of other sources is built, which takes minutes.
    while not (found := _kept(sources := sources_digest())):
        with only_builder("distributions"), TemporaryDirectory(prefix="dovetail-wheel-") as folder:
            if _kept(sources):
                continue
            # With one time the same sources are the same distribution in every commit.
            sdist = build_sdist(Path(folder), 0)
            # The sources may have changed, as when another process built for minutes.
            if sources_digest() == sources:
                wheel = build_wheel(sdist, Path(folder), 0, report)
                keep(_folder_of(sources) / wheel.name, wheel.read_bytes())
    return found[0]


def _kept(sources: str) -> list[Path]:
    """The wheels of sources with this digest that this Python can install."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return list(_folder_of(sources).glob(f"*-{python}-*_{platform.machine()}.whl"))


def _folder_of(sources: str) -> Path:
    """Where wheels of sources with this digest are kept that are built with the variables of now."""
    named = "".join(f"{name}={os.environ[name]}\0" for name in _COMPILER_VARIABLES if os.environ.get(name))
    built = f"-{hashlib.sha256(named.encode(errors='surrogateescape')).hexdigest()[:16]}" if named else ""
    return cache_dir() / "distributions" / f"{sources}{built}"


def sources_digest(root: Path = ROOT) -> str:
    """The SHA-256 of all that a source distribution is built from: names, content and whether it is executable. To
    build the distribution, to find that its wheel is there, would take three seconds. Raises PlaneUnavailable."""
    total = hashlib.sha256()
    for name in _sources(root):
        path = root / name
        link = path.is_symlink()
        content = os.fsencode(path.readlink()) if link else path.read_bytes()
        kind = "link" if link else "program" if os.access(path, os.X_OK) else "file"
        total.update(f"{name}\0{kind}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def put_into_tree(report: Report, root: Path = ROOT) -> list[Path]:
    """Put the compiled parts of the kept wheel beside the sources of the working tree, in place of those that are
    there. Returns them. Raises PlaneUnavailable.

    So the tests run what the image has, and it is compiled once."""
    wheel, sources = kept_wheel(report), root / "src"
    for old in sources.rglob("*.so"):
        old.unlink()
    with zipfile.ZipFile(wheel) as archive:
        return [Path(archive.extract(name, sources)) for name in archive.namelist() if name.endswith(".so")]


def _has_core(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        return any("__mypyc." in name for name in archive.namelist())


def _compiler(source: Path, epoch: int) -> dict[str, str]:
    """Variables for libraries without traces of this machine."""
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")[0]
    return {
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONHASHSEED": "0",
        "CFLAGS": f"-g0 -ffile-prefix-map={source}=.",
        # Python's own command has folders of this machine's Python.
        "LDSHARED": f"{os.environ.get('CC') or linker} -shared -Wl,--strip-all -Wl,--build-id=none",
    }


def _hook(name: str, source: Path, target: Path, variables: dict[str, str]) -> str:
    """Call a hook of PEP 517 of setuptools, in this environment: its pinned versions build. Returns the file's name."""
    target.mkdir()
    argv = [sys.executable, "-c", _BUILD, name, str(target)]
    environment = os.environ | {"PATH": _path()} | variables
    # The copy must not find modules of the working tree.
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(argv, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PlaneUnavailable(f"{name} failed:\n{tail(done.stderr)}")
    return done.stdout.splitlines()[-1]


def _path() -> str:
    return os.pathsep.join((str(Path(sys.executable).parent), *os.get_exec_path()))


def _sources(root: Path) -> list[str]:
    """What git knows or would add and is in the working tree, files and symbolic links. Raises PlaneUnavailable."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_PARTS)
    if not listed:
        raise PlaneUnavailable(f"git lists no files in {root}: distributions are built in a clone")
    names = sorted(filter(None, listed.split("\0")))
    return [name for name in names if (root / name).is_symlink() or (root / name).is_file()]


def _copy(root: Path, target: Path) -> None:
    """Copy the sources, as they are in the working tree."""
    for name in _sources(root):
        source, copy = root / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(source.readlink())
        else:
            copy.write_bytes(source.read_bytes())
            copy.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _with_one_time(content: bytes, epoch: int) -> bytes:
    """The archive again, sorted and with one time and owner."""
    target = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as old,
        tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old, key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
    # A higher level takes twice the time for a hundredth of the size.
    return gzip.compress(target.getvalue(), compresslevel=6, mtime=0)


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip("\n")
