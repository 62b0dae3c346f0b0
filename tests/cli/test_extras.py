# SPDX-License-Identifier: Apache-2.0
"""Where an extra is not installed its commands report in one line what to install, and all others work."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from dovetail.cli.extras import EXTRAS
from tests.cli.calls import each_call
from tests.paths import ROOT


@cache
def without(
    missing: tuple[str, ...], calls: tuple[tuple[str, ...], ...]
) -> dict[tuple[str, ...], tuple[int, str, str]]:
    """Of each call, each in a process of its own, without these modules: exit code, output and errors."""
    ends = each_call(calls, missing=missing)
    return {call: (end.code, end.printed, end.errors) for call, end in zip(calls, ends, strict=True)}


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
