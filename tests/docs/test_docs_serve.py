# SPDX-License-Identifier: Apache-2.0
"""The reference names the fields and values of `dovetail serve plan`, and the pages show what it prints."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import asdict, fields

from dovetail.advice.serve.engines import BY_NAME
from dovetail.advice.serve.request_lengths import NAMES, RequestLengths
from dovetail.advice.serve.roofline import InstanceLayout
from dovetail.advice.serve.types import (
    RejectedOption,
    RolePlan,
    ServePlan,
    ServingOption,
    SimulatedRun,
    TraceSimulation,
    WantedServing,
)
from dovetail.cli import cli
from dovetail.cli.serve.serve_plan import command
from tests.docs.pages import page
from tests.terminal import environment

HERE = page("docs/reference/cli.md").section("dovetail serve plan")
HOW_TO = page("docs/how-to/plan-serving.md")
EXPLAINED = page("docs/explanation/serving-plans.md")


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("field", ServePlan),
        ("field of `options`", ServingOption),
        ("field of `roles`", RolePlan),
        ("field of `simulation`", TraceSimulation),
        ("field of `runs`", SimulatedRun),
    ],
)
def test_fields_of_the_answer(head: str, kind: type) -> None:
    assert {name for row in HERE.rows(head) for name in row.code[0]} == names(kind)


@pytest.mark.parametrize(
    ("head", "row", "kind"),
    [
        ("field", "wanted", WantedServing),
        ("field", "wanted", RequestLengths),
        ("field", "rejected", RejectedOption),
        ("field of `roles`", "layout", InstanceLayout),
    ],
)
def test_fields_of_what_is_inside(head: str, row: str, kind: type) -> None:
    (found,) = (one for one in HERE.rows(head) if row in one.code[0])
    assert names(kind) <= set(found.code[1])


def test_values_of_options() -> None:
    written = {option: row.cells[2] for row in HERE.rows("option") for option in row.code[0]}
    for name in ("--engine", "--mode"):
        (option,) = (p for p in command.params if name in p.opts)
        assert isinstance(option.type, click.Choice)
        assert set(option.type.choices) <= set(re.findall(r"`([\w-]+)`", written[name]))
    assert all(f"`{name}`" in HERE.text for pair in NAMES for name in pair)


def test_the_page_shows_what_is_printed() -> None:
    line, shown = re.search(r"```console\n\$ dovetail (.*?)\n```.*?```text\n(.*?)```", HOW_TO.text, re.S).groups()  # type: ignore[union-attr]
    result = CliRunner().invoke(cli, shlex.split(line), env=environment(400))
    assert result.exit_code == 0, result.output
    assert result.stdout == shown


def test_constants_are_those_of_the_engines() -> None:
    shown = [tuple(float(cell) for cell in row.cells[1:]) for row in EXPLAINED.rows("of the rate")]
    both = (asdict(BY_NAME[name].efficiency) for name in ("vllm", "tensorrt-llm"))
    assert shown == list(zip(*(one.values() for one in both), strict=True))
