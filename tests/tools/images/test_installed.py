# SPDX-License-Identifier: Apache-2.0
"""The wheel in an environment of its own, as `pip install dovetail` makes it: with what it declares, and no more."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from threading import Timer

import pytest

from benchmarks.start_speed import commands
from tests.needs import unavailable
from tests.paths import ROOT
from tools.controlplane.binaries import PlaneUnavailable
from tools.images import python_packages

pytestmark = pytest.mark.slow
MIB = 1 << 20


@pytest.fixture(scope="module")
def wheels() -> Path:
    """The folder with the wheels of requirements/run.lock."""
    try:
        return python_packages.download()[0].parent
    except PlaneUnavailable as error:
        unavailable(f"no wheels: {error}")


@pytest.fixture(scope="module")
def base(wheel: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with Dovetail and no extra."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False)
    install(folder, wheels, str(wheel))
    return folder


def install(folder: Path, wheels: Path, what: str) -> None:
    argv = [sys.executable, "-m", "pip", f"--python={folder}/bin/python", "install", "--quiet", "--no-index"]
    argv += ["--disable-pip-version-check", f"--find-links={wheels}"]
    # What the tests import is compiled then.
    argv += ["--no-compile", what]
    # What PYTHONPATH names would count as installed.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(argv, env=environ, check=True, capture_output=True, text=True)


def dovetail(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [f"{folder}/bin/dovetail", *arguments]
    return subprocess.run(argv, cwd=ROOT / "docs", env={}, capture_output=True, text=True, timeout=120, check=False)


def test_it_has_no_grpc_no_protobuf_and_no_matplotlib_and_is_small(base: Path) -> None:
    site = next(base.glob("lib/python*/site-packages"))
    installed = {path.name.partition("-")[0] for path in site.glob("*.dist-info")}
    assert {"dovetail", "numpy", "msgspec"} <= installed
    assert not installed & {"grpcio", "protobuf", "nvidia_ml_py", "matplotlib", "mcp", "pydantic"}
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert size < 160 * MIB


_CALL_ALL = """
import json, sys, traceback
from dovetail.cli import main
program, failed = sys.argv[0], []
for call in json.load(sys.stdin):
    sys.argv[:] = [program, *call]
    try:
        main()
    except SystemExit as end:
        if end.code:
            failed.append((call, end.code))
    except BaseException:
        failed.append((call, traceback.format_exc()))
json.dump(failed, sys.stderr)
"""


def show_help(base: Path, words: list[tuple[str, ...]]) -> None:
    """Show the help of these commands, in one process: to start one for each takes 20 s of CPU time for all."""
    calls = [(*each, "--help") for each in words]
    argv = [f"{base}/bin/python", "-c", _CALL_ALL]
    done = subprocess.run(argv, cwd=ROOT / "docs", env={}, input=json.dumps(calls), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]") and done.stdout.count("Usage: ") == len(calls)


def test_every_command_shows_its_help(base: Path) -> None:
    show_help(base, list(commands()))
    assert dovetail(base, "--version").stdout == "dovetail 0.1.0 (compiled core, native kernel)\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["queue", "-f", "examples/two-teams.yaml", "--at", "2026-11-22T12:00:00Z"],
        ["why", "product/batch-0", "-f", "examples/two-teams.yaml", "--at", "2026-11-22T12:00:00Z"],
        ["simulate", "examples/two-teams.yaml"],
        ["lint", "examples/eval.yaml"],
        ["memory", "llama-3.1-70b"],
        ["install", "--dry-run", "-o", "yaml"],
        ["agent", "find"],
        ["demo", "-o", "json"],
    ],
    ids=lambda value: value[0],
)
def test_the_commands_of_every_installation_work(base: Path, arguments: list[str]) -> None:
    done = dovetail(base, *arguments)
    assert done.returncode == 0 and done.stdout and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["scheduler", "--no-leader-elect", "--no-recording"], ["operator"], ["plane", "serve", "--state=x"]],
    ids=lambda value: value[0],
)
def test_scheduler_operator_and_endpoints_begin(base: Path, tmp_path: Path, arguments: list[str]) -> None:
    """As far as to the cluster: all that they import is there."""
    config = tmp_path / "config"
    config.write_text('{clusters: [{name: x, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: x}], '
                      "contexts: [{name: x, context: {cluster: x, user: x}}], current-context: x}")  # fmt: skip
    where = ["--address=127.0.0.1:0", f"--state={tmp_path}/state"] if arguments[0] == "plane" else []
    argv = [f"{base}/bin/dovetail", *arguments, *where, f"--kubeconfig={config}", "--listen=127.0.0.1:0"]
    with subprocess.Popen(argv, env={}, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        end = Timer(120, process.kill)
        end.start()
        try:
            line = next((line for line in process.stderr if "Connection refused" in line or "Error" in line), "")
            assert "Error" not in line and line, line
        finally:
            end.cancel()
            process.terminate()


def test_the_agent_begins_with_its_extra_and_not_without(base: Path, wheels: Path, wheel: Path) -> None:
    without = dovetail(base, "agent", "check")
    line = "Error: this needs grpc, google.protobuf, pynvml: pip install 'dovetail[agent]'\n"
    assert (without.returncode, without.stdout, without.stderr) == (2, "", line)
    # As that line asks, in the same environment. No other test comes after this one in it.
    install(base, wheels, f"{wheel}[agent]")
    show_help(base, [("agent", command) for command in ("check", "run", "inspect", "observe", "mps")])
    found = dovetail(base, "agent", "inspect")
    assert found.returncode == 0 and found.stdout, found.stderr
