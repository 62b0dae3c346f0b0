# SPDX-License-Identifier: Apache-2.0
"""The source distribution builds everywhere; the wheel has compiled parts."""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from dovetail.__native__ import PACKAGE, not_compiled
from tests.paths import ROOT
from tools.controlplane.binaries import PlaneUnavailable, Report
from tools.images import distributions
from tools.images.distributions import build_sdist, build_wheel
from tools.images.python_packages import runs_on

pytestmark = pytest.mark.slow
EPOCH_S = 1_700_000_000


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"), EPOCH_S)


def packaged() -> set[str]:
    """The files of the packages, as git knows them, below src; those below the link to deploy/ too."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "src", "deploy"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    links = {name.removeprefix("src/"): (ROOT / name).resolve() for name in listed if (ROOT / name).is_symlink()}
    found = {name.removeprefix("src/") for name in listed if name.startswith("src/") and (ROOT / name).is_file()}
    for link, target in links.items():
        inside = target.relative_to(ROOT.resolve()).as_posix()
        found |= {f"{link}/{name.removeprefix(f'{inside}/')}" for name in listed if name.startswith(f"{inside}/")}
    return found


# Files beside the modules that no program reads.
NOT_INSTALLED = {"kubecel/README.md", "kubecel/pyproject.toml", "kubecel/LICENSE"}
CHARTS = ("dovetail/operator/manifests/chart/", "deploy/chart/")
PROTOCOLS = "dovetail/agent/apis/"


def expected() -> set[str]:
    found = {name for name in packaged() - NOT_INSTALLED if not name.startswith(CHARTS)}
    return {name for name in found if not (name.startswith(PROTOCOLS) and name.endswith(".proto"))}


def run_of(folder: Path, *arguments: str) -> str:
    """The output of the `dovetail` that is installed in a folder, with this environment's dependencies."""
    command = "import sys; sys.path.insert(0, sys.argv.pop(1)); from dovetail.cli import main; main()"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DOVETAIL_NATIVE")}
    argv = [sys.executable, "-c", command, str(folder), *arguments]
    return subprocess.run(argv, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def install(distribution: Path, target: Path, **environment: str) -> Path:
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    # What the tests import is compiled then.
    argv += ["--disable-pip-version-check", "--no-compile", f"--target={target}", str(distribution)]
    subprocess.run(argv, cwd=target.parent, env=os.environ | environment, check=True)
    return target


def test_two_source_distributions_are_the_same_bytes(sdist: Path, tmp_path: Path) -> None:
    assert build_sdist(tmp_path, EPOCH_S).read_bytes() == sdist.read_bytes()


def test_the_source_distribution_has_every_file_of_the_package(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/src/")[2] for member in archive if member.isfile()}
    assert any(name.startswith("dovetail/operator/manifests/") for name in names)
    assert expected() - names == set()


def test_two_wheels_are_the_same_bytes_and_have_every_file_of_the_package(sdist: Path, tmp_path: Path) -> None:
    wheels = [build_wheel(sdist, tmp_path / name, EPOCH_S, lambda text: None, compiled=False) for name in ("a", "b")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as archive:
        assert expected() - set(archive.namelist()) == set()
        libraries = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    assert libraries and not any(str(tmp_path).encode() in library or b"RPATH" in library for library in libraries)


def test_where_there_is_no_compiler_the_source_distribution_works(sdist: Path, tmp_path: Path) -> None:
    folder = install(sdist, tmp_path / "installed", CC="/bin/false", DOVETAIL_COMPILE="0")
    assert (
        run_of(folder, "--version")
        == "dovetail 0.1.0 (pure Python: the kernel was not built; the core as it is written: it was not compiled)"
    )


def test_where_there_is_one_the_source_distribution_has_the_kernel(sdist: Path, tmp_path: Path) -> None:
    """Built with this environment's own settings. (What is installed is what is built: see the test above.)"""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    argv = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(argv, cwd=source, env=os.environ | {"DOVETAIL_COMPILE": "0"}, check=True)
    assert run_of(source / "src", "--version").startswith("dovetail 0.1.0 (native kernel")


def test_the_wheel_runs_on_old_c_libraries(wheel: Path) -> None:
    """test_installed.py shows that it has all compiled parts."""
    # RHEL 8 has 2.28, Ubuntu 20.04 has 2.31. The tag follows from the symbols that this machine's compiler used.
    assert runs_on(wheel.name, (2, 28))


def test_the_tree_gets_the_compiled_parts_of_the_wheel(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "kept_wheel", lambda report: wheel)
    old, package = tmp_path / "src/dovetail_0123__mypyc.so", tmp_path / "src/dovetail"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    old.touch()
    assert len(distributions.put_into_tree(lambda text: None, tmp_path)) > 80
    assert not old.exists() and not_compiled(package) == ""


class Cache:
    """Of wheels, with the sources in a text and builders that take no time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sources, self.built, self.meanwhile = "old", list[str](), ""
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        for name in distributions._COMPILER_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(distributions, "sources_digest", lambda: self.sources)
        monkeypatch.setattr(distributions, "build_sdist", self._sdist)
        monkeypatch.setattr(distributions, "build_wheel", self._wheel)

    def _sdist(self, target: Path, epoch: int) -> Path:
        self.sources = self.meanwhile or self.sources
        (target / "sdist").write_text(self.sources)
        return target / "sdist"

    def _wheel(self, sdist: Path, target: Path, epoch: int, report: Report) -> Path:
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        result = target / f"dovetail-0.1.0-{python}-{python}-manylinux_2_17_{platform.machine()}.whl"
        self.built.append(sdist.read_text())
        result.write_text(sdist.read_text())
        return result

    def wheel(self) -> str:
        return distributions.kept_wheel(lambda text: None).read_text()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    return Cache(tmp_path, monkeypatch)


def test_a_wheel_is_built_once_for_its_sources(wheels: Cache) -> None:
    found = [wheels.wheel(), wheels.wheel()]
    wheels.sources = "new"
    assert [*found, wheels.wheel()] == ["old", "old", "new"] and wheels.built == ["old", "new"]


def test_sources_that_change_before_they_are_built_have_a_wheel_of_their_own(wheels: Cache) -> None:
    wheels.meanwhile = "new"
    assert wheels.wheel() == "new"
    wheels.sources, wheels.meanwhile = "old", ""
    assert wheels.wheel() == "old"


def test_another_python_has_a_wheel_of_its_own(wheels: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [distributions.kept_wheel(lambda text: None).name]
    monkeypatch.setattr(sys, "version_info", SimpleNamespace(major=3, minor=99))
    found += [distributions.kept_wheel(lambda text: None).name for _ in range(2)]
    assert ["-cp399-" in name for name in found] == [False, True, True] and len(wheels.built) == 2


def test_another_compiler_or_other_flags_have_a_wheel_of_their_own(
    wheels: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.wheel()
    for name, value in (("CC", "gcc -march=native"), ("LDFLAGS", "-Wl,-O1"), ("CPPFLAGS", "-DSLOW"), ("CC", "gcc")):
        monkeypatch.setenv(name, value)
        for _ in range(2):
            wheels.wheel()
    assert len(wheels.built) == 5
    for name in ("CC", "LDFLAGS", "CPPFLAGS"):
        monkeypatch.delenv(name)
    # A build has its own.
    monkeypatch.setenv("CFLAGS", "-O0")
    wheels.wheel()
    assert len(wheels.built) == 5


@pytest.mark.parametrize("compiled", [True, False])
def test_a_wheel_has_the_compiled_core_where_it_is_asked_for(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever DOVETAIL_COMPILE is in the environment. Here the hook builds the kernel alone, as without mypy."""
    (tmp_path / "dovetail-0.1.0").mkdir()
    sdist = tmp_path / "dovetail-0.1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(tmp_path / "dovetail-0.1.0", "dovetail-0.1.0")
    asked = list[str]()

    def hook(name: str, source: Path, target: Path, variables: dict[str, str]) -> str:
        asked.append(variables["DOVETAIL_COMPILE"])
        target.mkdir()
        with zipfile.ZipFile(target / "dovetail-0.1.0-cp311-cp311-linux_x86_64.whl", "w") as archive:
            archive.writestr("dovetail/core/placing/_kernel.abi3.so", "")
        return "dovetail-0.1.0-cp311-cp311-linux_x86_64.whl"

    monkeypatch.setenv("DOVETAIL_COMPILE", str(int(not compiled)))
    monkeypatch.setattr(distributions, "_hook", hook)
    # auditwheel finds no library in it.
    with pytest.raises(PlaneUnavailable, match="has no compiled core" if compiled else "auditwheel refuses"):
        build_wheel(sdist, tmp_path / "wheel", EPOCH_S, lambda text: None, compiled=compiled)
    assert asked == [str(int(compiled))]


def test_times_come_from_the_environment_or_the_last_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "42")
    assert distributions.epoch_s() == 42
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert distributions.epoch_s() > EPOCH_S
    assert (distributions.epoch_s(tmp_path), distributions.revision(tmp_path)) == (0, "")
