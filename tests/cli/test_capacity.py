# SPDX-License-Identifier: Apache-2.0
"""`dovetail capacity`, as a user runs it on a file of the history, and its page."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import fields

from dovetail.cli import cli
from dovetail.cli.capacity_columns import CAPACITY
from dovetail.cost.capacity import CapacityAdvice, CapacityAnswer, StrandedCost
from tests.cli.answers import answer as checked
from tests.cli.capacity_history import write
from tests.docs.pages import page
from tests.terminal import environment

SECTION = page("docs/reference/cli.md").section("dovetail capacity")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "history.db"
    write(path)
    return path


def run(store: Path, *arguments: str) -> Result:
    words = ["capacity", "--store", str(store), "--period", "2026-11", *arguments]
    return CliRunner().invoke(cli, words, env=environment(140))


def test_the_page_shows_what_is_printed(store: Path) -> None:
    shown = run(store).stdout
    (block,) = [one for one in page("docs/how-to/plan-capacity.md").blocks if "capacity --store" in one.text]
    printed = block.text.splitlines()[1:]
    assert [line.split() for line in shown.splitlines()] == [line.split() for line in printed]


def test_the_answer_for_programs(store: Path) -> None:
    found = checked(run(store, "-o", "json").stdout, "Capacity")
    assert [(one["verdict"], one["nodes"], one["change_nodes"]) for one in found["kinds"]] == [
        ("give back", 8, -2), ("rent or buy", 2, 1), ("keep", 1, 0),
    ]  # fmt: skip
    assert all(one["risk"] and one["wrong_if"] for one in found["kinds"][:2])


def test_buying_pays_after_whole_months_and_only_for_what_is_rented(store: Path) -> None:
    assert "pays after" not in run(store, "--buy-price", "H100-SXM5=31000").stdout
    found = json.loads(run(store, "--buy-price", "A100-SXM4-40GB=12000", "-o", "json").stdout)["kinds"]
    assert [one["pays_after_months"] for one in found][::2] == [None, None]
    month_micro = 730 * found[1]["per_hour_micro"]
    months = found[1]["pays_after_months"]
    assert (months - 1) * month_micro < 8 * 12_000 * 10**6 <= months * month_micro


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--buy-price", "H100"), 2, "is not a model with the price of a GPU"),
        (("--buy-price", "H100=0"), 2, "is not a model with the price of a GPU"),
        (("--period", "yesterday"), 2, "yesterday"),
        (("--time-zone", "Mars"), 2, "Mars"),
        (("--store", "/nowhere.db"), 1, "there is no such file"),
    ],
)
def test_errors_are_one_clear_line(store: Path, arguments: tuple[str, ...], code: int, text: str) -> None:
    result = run(store, *arguments)
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_records_cannot_bring_formulas_markup_or_control_characters(tmp_path: Path) -> None:
    """Models and instance types are labels of nodes."""
    path = tmp_path / "history.db"
    write(path)
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE spans SET model = ? WHERE node LIKE 'l-%'", ("=1+1[red]\x1b[31m<b>",))
        assert file.execute("SELECT changes()").fetchone() == (8,)
        file.commit()
    table = run(path, "-o", "wide").stdout
    assert "[red]" in table and "\x1b" not in table
    rows = list(csv.DictReader(run(path, "-o", "csv").stdout.splitlines()))
    assert [row["model"][:5] for row in rows if "[red]" in row["model"]] == ["'=1+1"]
    assert not any("\x1b" in text for row in rows for text in row.values())


def test_the_reference_has_every_column_and_field() -> None:
    def first(head: str) -> list[str]:
        return [name for row in SECTION.rows(head) for name in row.code[0]]

    (row,) = SECTION.rows("list")
    assert row.code == [["capacity"], *([c.name for c in CAPACITY.columns if c.wide is wide] for wide in (False, True))]
    assert first("field") == [one.name for one in fields(CapacityAnswer)]
    assert first("field of `kinds`") == [one.name for one in fields(CapacityAdvice)]
    assert first("field of `stranded`") == [one.name for one in fields(StrandedCost)]
