# SPDX-License-Identifier: Apache-2.0
"""What pages show of the two teams in docs/examples is what the commands print."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from tests.docs.pages import every_page
from tests.paths import ROOT
from tests.terminal import environment

SHOWN = [
    pytest.param(command, printed, id=f"{block.page}: {command[:48]}")
    for found in every_page()
    for block in found.blocks
    if block.language == "console"
    for command, printed in block.commands
    if "two-teams.yaml" in command
]


@pytest.mark.parametrize(("command", "printed"), SHOWN)
def test_the_pages_show_what_is_printed(command: str, printed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(cli, shlex.split(command)[1:], env=environment(100))
    assert (result.exit_code, result.stderr.strip()) == (0, "")
    if any(printed):
        assert [line.split() for line in result.stdout.splitlines()] == [line.split() for line in printed if line]


def test_some_answers_are_shown() -> None:
    assert {shlex.split(str(shown.values[0]))[1] for shown in SHOWN} >= {"queue", "share", "whatif", "defrag"}
