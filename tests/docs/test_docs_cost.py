# SPDX-License-Identifier: Apache-2.0
"""The reference of costs has every column and field, and the how-to shows what is printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import fields

from dovetail.cli import cli
from dovetail.cli.cost_columns import COST, REPORT
from dovetail.cli.listing import ListColumns
from dovetail.cost.costs import CostAnswer, CostRow, Coverage, PriceUsed, UnpricedTime
from dovetail.cost.focus import COLUMNS as FOCUS
from dovetail.cost.idle_rules import IDLE_RULES
from dovetail.cost.price_files import COLUMNS
from dovetail.cost.utilization import Utilization, UtilizationRow
from tests.cli.cost_history import write
from tests.docs.pages import page
from tests.terminal import environment

REFERENCE = page("docs/reference/cost.md")
HOW_TO = page("docs/how-to/cost.md")


def names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def first(section: str, head: str) -> list[str]:
    return [name for row in REFERENCE.section(section).rows(head) for name in row.code[0]]


@pytest.mark.parametrize(("command", "listing"), [("cost", COST), ("report", REPORT)])
def test_columns_of_lists(command: str, listing: ListColumns[object]) -> None:
    (row,) = REFERENCE.section(f"Columns of dovetail {command}").rows("list")
    shown = [[one.name for one in listing.columns if one.wide is wide] for wide in (False, True)]
    assert row.code == [[command], *shown]


def test_fields_of_answers() -> None:
    section = "Columns of dovetail cost"
    assert first(section, "field") == names(CostAnswer)
    assert first(section, "field of `rows`") == names(CostRow)
    assert first(section, "field of `coverage`") == names(Coverage)
    rows = {row.code[0][0]: row.code[1] for row in REFERENCE.section(section).rows("field")}
    assert set(names(PriceUsed)) <= set(rows["prices"]) and set(names(UnpricedTime)) <= set(rows["unpriced"])
    section = "Columns of dovetail report"
    assert first(section, "field") == names(Utilization)
    found = {row.code[0][0]: row.code[1] for row in REFERENCE.section(section).rows("field")}
    assert found["rows"] == names(UtilizationRow)


def test_columns_of_price_files_and_of_focus_and_rules() -> None:
    assert first("Files of prices", "column") == list(COLUMNS)
    assert sorted(first("FOCUS", "column")) == sorted(FOCUS)
    assert first("What is added up", "`--idle`") == list(IDLE_RULES)


def test_the_how_to_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("history.db"))
    shown = [block.text for block in HOW_TO.blocks if block.language == "text"]
    (prices,) = (text for text in shown if text.startswith("per,"))
    Path("own.csv").write_text(prices)
    commands = [line for block in HOW_TO.blocks if block.language == "console" for line, _ in block.commands]
    # The others ask a cluster.
    commands = [line for line in commands if "--store" in line]
    *printed, focus = commands
    for line, text in zip(printed, (text for text in shown if text != prices), strict=True):
        result = CliRunner().invoke(cli, shlex.split(line)[1:], env=environment(120))
        assert [found.rstrip() for found in result.stdout.splitlines()] == text.splitlines()
    assert CliRunner().invoke(cli, shlex.split(focus)[1:-2]).exit_code == 0
