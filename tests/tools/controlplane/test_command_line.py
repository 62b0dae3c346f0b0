# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.controlplane`: a detached plane, and what happens where it cannot be built."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.controlplane import binaries, referee


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, *arguments]
    return subprocess.run(
        argv, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=60
    )


def fake_go(directory: Path, build: str) -> Path:
    """A `go` of the right version whose `build` is a line of shell; its output file is the argument after -o."""
    go = directory / "bin" / "go"
    go.parent.mkdir()
    version = '[ "$1" = version ] && echo go version go1.99.0 && exit'
    go.write_text(f'#!/bin/sh\n{version}\nwhile [ "$1" != -o ]; do shift; done\n{build}\n')
    go.chmod(0o755)
    return go


@pytest.mark.plane
def test_a_detached_plane_is_up_until_down(tmp_path: Path) -> None:
    def controlplane(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run("-m", "tools.controlplane", *arguments, XDG_STATE_HOME=str(tmp_path))

    assert controlplane("status").returncode == 1
    up = controlplane("up", "--detach", "--no-controllers")
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        assert "already up" in controlplane("up").stderr
        facts = json.loads(controlplane("status").stdout)
        assert set(facts["pids"]) == {"etcd", "kube-apiserver"}
        shell = f"{controlplane('env').stdout}\nkubectl get --raw /readyz"
        assert subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False).stdout == "ok"
    finally:
        down = controlplane("down")
    assert down.returncode == 0
    assert not Path(facts["kubeconfig"]).exists()
    assert controlplane("down").returncode == 1


@pytest.mark.slow
def test_two_builders_build_once(tmp_path: Path) -> None:
    go = fake_go(tmp_path, f'sleep 0.1; echo "$2" >> {tmp_path}/built; touch "$2"')
    environment = os.environ | {"PATH": f"{go.parent}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "tools.controlplane", "build"]
    builders = [subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {builder.communicate(timeout=PATIENCE_S)[0].strip() for builder in builders}
    assert len(printed) == 1
    names = sorted([*binaries.PACKAGES, *referee.PACKAGES])
    assert (
        sorted(path.name for line in printed.pop().splitlines() for path in Path(line.rpartition(" in ")[2]).iterdir())
        == names
    )
    assert len((tmp_path / "built").read_text().splitlines()) == len(names)


def test_a_failed_build_reports_reason_and_fix_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = fake_go(tmp_path, "echo 'dial tcp: lookup proxy: no such host' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(binaries.PlaneUnavailable, match=r"(?s)cannot build etcd.*no such host.*GOPROXY"):
        binaries.build(lambda text: None)
    assert not binaries.binaries_dir().exists()


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "outcome"), [("false", "1 skipped"), ("true", "1 error")])
def test_without_binaries_a_plane_test_is_skipped_but_an_error_in_ci(tmp_path: Path, ci: str, outcome: str) -> None:
    go = fake_go(tmp_path, "echo 'no such host' >&2; exit 1")
    test = "tests/tools/controlplane/test_plane.py::test_it_is_ready_and_of_the_pinned_version"
    path = f"{go.parent}:{os.environ['PATH']}"
    result = run("-m", "pytest", "-p", "no:cacheprovider", test, PATH=path, XDG_CACHE_HOME=str(tmp_path), CI=ci)
    assert outcome in result.stdout
    assert "CONTROL PLANE TESTS DID NOT RUN" in result.stdout
    assert "no such host" in result.stdout
