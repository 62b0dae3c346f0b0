# SPDX-License-Identifier: Apache-2.0
"""Commands start quickly: to declare the options of a command no library is imported that takes long."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from benchmarks.start_speed import ANSWERED, answering, commands
from dovetail.cli import run
from dovetail.cli.extras import EXTRAS
from dovetail.cli.lint import lint, report
from dovetail.cli.scheduler import command as scheduler
from dovetail.cli.simulate import simulate, tasks
from dovetail.core.policy import Policy
from dovetail.jobs.manifests import NEW_KINDS
from dovetail.kube.translate.quarantine_budget import budget_of
from dovetail.sim.policies import POLICIES
from tests.cli.calls import each_call

HEAVY = (
    *("aiohttp", "asyncio", "httptools", "numpy", "prometheus_client", "rich.progress", "sqlite3", "ssl", "uvloop"),
    *("textual", "pydantic", "starlette", "uvicorn"),
    *(module for extra in EXTRAS.values() for module in extra),
)
"""The last line but one is of `watch` and of `mcp`."""
CORE = ("dovetail.core.state", "kubecel", "numpy")
"""What computes answers; a command that only prints them needs none of it."""
ANSWER = (*CORE, "dovetail.core.model", "rich.console", "rich.markup", "uvloop")
"""Besides, the records of the core, what draws on a terminal, and an event loop for more than a request or two."""


def imported(calls: list[list[str]], heavy: tuple[str, ...] = HEAVY) -> list[tuple[list[str], int, list[str]]]:
    """Of each call, each in a process of its own: the exit code, and what it imported of these modules."""
    ends = each_call(calls, heavy)
    return [(call, end.code, end.found) for call, end in zip(calls, ends, strict=True)]


@pytest.mark.slow
def test_no_option_is_declared_by_a_heavy_library() -> None:
    calls = [["--help"], ["--version"], *([*words, "--help"] for words in commands())]
    assert len(calls) > 45
    assert imported(calls) == [(call, 0, []) for call in calls]


@pytest.mark.slow
def test_a_heavy_library_would_be_found() -> None:
    assert [module for module in HEAVY if find_spec(module) is None] == []
    ((_, code, found),) = imported([["queue", "-f", "none.yaml"]])
    assert code == 1 and "numpy" in found


@pytest.mark.slow
def test_what_the_scheduler_answers_is_printed_without_the_core() -> None:
    with answering() as config:
        words = [[*one.split(), "--kubeconfig", str(config)] for one in ANSWERED]
        calls = [*words, *([*one, "-o", "json"] for one in words)]
        # What is written for a drain is a record of the core, and how a queue is stopped a type of it.
        known = {("drain", "n1"): ["dovetail.core.model"], ("queue", "drain"): ["dovetail.core.model"]}
        assert imported(calls, ANSWER) == [(call, 0, known.get((call[0], call[1]), [])) for call in calls]
        ((_, code, found),) = imported([["queue", "--policy", "tightest", "--kubeconfig", str(config)]], CORE)
        assert code == 1 and found == list(CORE)


def test_names_that_are_declared_without_their_library_are_those_of_the_library() -> None:
    assert tuple(POLICIES) == simulate.SCORINGS
    assert tuple(tasks.QUEUES_BY) == simulate.QUEUES_BY
    assert tuple(report.WRITERS) == lint.WRITERS
    assert tuple(NEW_KINDS) == run.KINDS
    (budget,) = (one.default for one in scheduler.params if one.name == "budget")
    assert budget == budget_of(Policy())
