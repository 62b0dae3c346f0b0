# SPDX-License-Identifier: Apache-2.0
"""The reference names the fields and values of `dovetail memory`, and the pages show what it prints."""

from __future__ import annotations

import json
import re
import shlex

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import fields

from dovetail.advice.formats import FORMATS
from dovetail.advice.layout import ModelParts, ParallelLayout
from dovetail.advice.memory import MemoryEstimate, MemoryRoom, MigSliceFit, Model, Need
from dovetail.cli import cli
from dovetail.cli.memory.memory import command
from tests.docs.pages import page
from tests.terminal import environment

HERE = page("docs/reference/cli.md").section("dovetail memory")
HOW_TO = page("docs/how-to/memory.md")


def names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


@pytest.mark.parametrize(("head", "kind"), [("field", MemoryEstimate), ("field of `gpus`", MemoryRoom)])
def test_fields_of_the_answer(head: str, kind: type) -> None:
    assert [row.code[0][0] for row in HERE.rows(head)] == names(kind)


@pytest.mark.parametrize(
    ("head", "row", "kind"),
    [
        ("field", "model", Model),
        ("field", "layout", ParallelLayout),
        ("field", "parts", ModelParts),
        ("field", "need", Need),
        ("field of `gpus`", "mig", MigSliceFit),
    ],
)
def test_fields_of_what_is_inside(head: str, row: str, kind: type) -> None:
    (found,) = (one for one in HERE.rows(head) if one.code[0] == [row])
    assert set(names(kind)) <= set(found.code[1])


def test_values_of_options() -> None:
    written = {option: row.cells[2] for row in HERE.rows("option") for option in row.code[0]}
    choices = [p for p in command.params if isinstance(p, click.Option) and isinstance(p.type, click.Choice)]
    for option in choices:
        documented = {span for name in option.opts for span in re.findall(r"`([\w-]+)`", written[name])}
        assert isinstance(option.type, click.Choice) and set(option.type.choices) <= documented, option.name


def test_formats_are_explained() -> None:
    explained = {name for row in page("docs/explanation/memory.md").rows("format") for name in row.code[0]}
    assert explained == set(FORMATS)


@pytest.mark.slow
def test_the_how_to_shows_what_is_printed() -> None:
    commands = [line for block in HOW_TO.blocks if block.language == "console" for line, _ in block.commands]
    shown = [block.text for block in HOW_TO.blocks if block.language == "text"]
    for text, line in zip(shown, commands, strict=False):
        result = CliRunner().invoke(cli, shlex.split(line)[1:], env=environment(120))
        assert [line.rstrip() for line in result.stdout.splitlines()] == text.splitlines()
    for line in commands[len(shown) : -1]:
        assert CliRunner().invoke(cli, shlex.split(line)[1:]).exit_code == 0


def test_the_how_to_shows_the_need() -> None:
    (shown,) = (json.loads(block.text) for block in HOW_TO.blocks if block.language == "json")
    first = CliRunner().invoke(cli, ["memory", "llama-3.1-70b", "-o", "json"])
    assert json.loads(first.stdout)["need"] == shown
