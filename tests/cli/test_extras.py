# SPDX-License-Identifier: Apache-2.0
"""Where an extra is not installed its commands report in one line what to install, and all others work."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest

from dovetail.cli.extras import EXTRAS
from tests.paths import ROOT

WITHOUT = """
import sys
from dovetail.cli import main

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

missing = sys.argv.pop(1).split(",")
sys.meta_path.insert(0, Missing())
main()
"""


def without(extras: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where no package of these extras is installed."""
    missing = ",".join(module for extra in extras for module in EXTRAS[extra])
    argv = [sys.executable, "-c", WITHOUT, missing, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)


AGENT = "Error: this needs grpc, google.protobuf, pynvml: pip install 'dovetail[agent]'\n"
PLOTS = "Error: this needs matplotlib: pip install 'dovetail[plots]'\n"
VIEWS = "Error: this needs cryptography: pip install 'dovetail[views]'\n"
DASHBOARD = (
    "Error: this needs sse_starlette, starlette, uvicorn: pip install 'dovetail[dashboard]'\n"
)  # fmt: skip
MCP = "Error: this needs mcp: pip install 'dovetail[mcp]'\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["agent", "run"], AGENT),
        (["agent", "check"], AGENT),
        (["agent", "inspect"], AGENT),
        (["agent", "mps"], AGENT),
        (["agent", "observe"], AGENT),
        (["scheduler", "--views", "0.0.0.0:10443"], VIEWS),
        (["plane", "mcp", "--fake", "1"], MCP),
        (["dashboard", "--file", "docs/examples/two-teams.yaml"], DASHBOARD),
        (["demo", "--dashboard"], DASHBOARD),
        (["simulate", "--plot", "x.png"], PLOTS),
        (["topology", "-", "--plot", "x.png"], PLOTS),
        (["spot", "--save=1m", "--restart=1m", "--mtbi=1h", "--discount=60%", "--plot=x.png"], PLOTS),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_command_without_its_extra_reports_what_to_install(arguments: list[str], message: str) -> None:
    done = without(tuple(EXTRAS), *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_what_is_missing_of_an_extra_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "pynvml", "agent", "check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "Error: this needs pynvml: pip install 'dovetail[agent]'\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["queue", "-f", "docs/examples/two-teams.yaml", "--at", "2026-11-22T12:00:00Z"],
        ["why", "product/batch-0", "-f", "docs/examples/two-teams.yaml", "--at", "2026-11-22T12:00:00Z"],
        ["free", "-f", "docs/examples/two-teams.yaml"],
        ["simulate", "docs/examples/two-teams.yaml"],
        ["lint", "docs/examples/eval.yaml"],
        ["memory", "llama-3.1-70b"],
        ["install", "--dry-run", "-o", "yaml"],
        ["monitoring", "rules"],
        ["agent", "find"],
        ["demo", "-o", "json"],
    ],
    ids=lambda value: value[0],
)
def test_the_other_commands_need_no_extra(arguments: list[str]) -> None:
    done = without(tuple(EXTRAS), *arguments)
    assert done.returncode == 0 and done.stdout, done.stderr
    assert "this needs" not in done.stderr and "Traceback" not in done.stderr


def test_the_extras_are_those_of_the_package() -> None:
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert offered.keys() - {"dev"} == EXTRAS.keys()
    of_module = packages_distributions()
    for extra, modules in EXTRAS.items():
        named = " ".join(offered[extra])
        for module in modules:
            assert any(one in named for one in of_module[module.partition(".")[0]]), module
