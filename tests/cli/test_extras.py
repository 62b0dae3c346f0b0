# SPDX-License-Identifier: Apache-2.0
"""Where an extra is not installed its commands report in one line what to install, and all others work."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from dovetail.cli.extras import EXTRAS
from tests.paths import ROOT

WITHOUT = """
import json, os, sys, traceback
from contextlib import suppress
from importlib import import_module
from dovetail.cli import main

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

missing, calls = json.loads(sys.argv[1])
sys.meta_path.insert(0, Missing())
for number, call in enumerate(calls):
    files = [os.memfd_create(f"{number}") for _ in range(2)]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        sys.argv = ["dovetail", *call]
        for stream, file in enumerate(files, 1):
            os.dup2(file, stream)
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        except Exception:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        with open(writing, "w") as channel:
            json.dump([code, list(sys.modules)], channel)
        os._exit(0)
    os.close(writing)
    with open(reading) as channel:
        code, modules = json.load(channel)
    os.waitpid(child, 0)
    print(json.dumps([code, *(os.pread(file, 1 << 24, 0).decode() for file in files)]), flush=True)
    # The next calls start with what this one has imported.
    for module in modules:
        if module not in sys.modules:
            with suppress(Exception):
                import_module(module)
"""


@cache
def without(
    missing: tuple[str, ...], calls: tuple[tuple[str, ...], ...]
) -> dict[tuple[str, ...], tuple[int, str, str]]:
    """Of each call, each in a process of its own, without these modules: exit code, output and errors."""
    argv = [sys.executable, "-c", WITHOUT, json.dumps([missing, calls])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
    return dict(zip(calls, (tuple(json.loads(line)) for line in done.stdout.splitlines()), strict=True))


ALL = tuple(module for modules in EXTRAS.values() for module in modules)
AGENT = "Error: this needs grpc, google.protobuf, pynvml: pip install 'dovetail[agent]'\n"
PLOTS = "Error: this needs matplotlib: pip install 'dovetail[plots]'\n"
VIEWS = "Error: this needs cryptography: pip install 'dovetail[views]'\n"
DASHBOARD = (
    "Error: this needs sse_starlette, starlette, uvicorn: pip install 'dovetail[dashboard]'\n"
)  # fmt: skip
MCP = "Error: this needs mcp: pip install 'dovetail[mcp]'\n"


REFUSED = [
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
]
OTHERS = [
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
]
CALLS = tuple(tuple(call) for call in (*(arguments for arguments, _ in REFUSED), *OTHERS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    REFUSED,
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_command_without_its_extra_reports_what_to_install(arguments: list[str], message: str) -> None:
    assert without(ALL, CALLS)[tuple(arguments)] == (2, "", message)


def test_what_is_missing_of_an_extra_is_named() -> None:
    ended = without(("pynvml",), (("agent", "check"),))["agent", "check"]
    assert ended == (2, "", "Error: this needs pynvml: pip install 'dovetail[agent]'\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    OTHERS,
    ids=lambda value: value[0],
)
def test_the_other_commands_need_no_extra(arguments: list[str]) -> None:
    code, printed, errors = without(ALL, CALLS)[tuple(arguments)]
    assert code == 0 and printed, errors
    assert "this needs" not in errors and "Traceback" not in errors


def test_the_extras_are_those_of_the_package() -> None:
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert offered.keys() - {"dev"} == EXTRAS.keys()
    of_module = packages_distributions()
    for extra, modules in EXTRAS.items():
        named = " ".join(offered[extra])
        for module in modules:
            assert any(one in named for one in of_module[module.partition(".")[0]]), module
