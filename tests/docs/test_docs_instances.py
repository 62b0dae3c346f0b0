# SPDX-License-Identifier: Apache-2.0
"""The reference names the fields of `dovetail instances` and `dovetail spot`, and the pages show what they print."""

from __future__ import annotations

import csv
import shlex

from click.testing import CliRunner
from msgspec.structs import fields

from dovetail.advice.instances import InstanceOption, InstanceRequest, PassedOver, Ranking
from dovetail.advice.prices import COLUMNS, built_in
from dovetail.cli import cli
from dovetail.cli.spot import At, Missing, Spot
from tests.docs.pages import page
from tests.paths import ROOT
from tests.terminal import environment

CLI = page("docs/reference/cli.md")
HOW_TO = page("docs/how-to/choose-instances.md")
PRICES = page("docs/reference/instances.md")


def names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def test_fields_of_instances() -> None:
    here = CLI.section("dovetail instances")
    rows = {row.code[0][0]: row for row in here.rows("field")}
    assert list(rows) == names(Ranking)
    assert set(names(InstanceRequest)) <= set(rows["wanted"].code[1])
    assert set(names(PassedOver)) <= set(rows["passed_over"].code[1])
    assert sorted(name for row in here.rows("field of `options`") for name in row.code[0]) == sorted(
        names(InstanceOption)
    )


def test_fields_of_spot() -> None:
    rows = CLI.section("dovetail spot").rows("field")
    assert {name for row in rows for name in row.code[0]} == set(names(Spot))
    documented = {row.code[0][0]: set(row.code[1]) for row in rows}
    assert set(names(At)) <= documented["intervals"] and set(names(Missing)) <= documented["missing"]


def test_columns_of_price_files() -> None:
    assert [row.code[0][0] for row in PRICES.rows("column")] == list(COLUMNS)


def test_the_sources_of_the_built_in_prices() -> None:
    dates = {row.code[0][0]: row.cells[3] for row in PRICES.rows("cloud")}
    assert {(one.cloud, one.price_date) for one in built_in()} == set(dates.items())
    assert f"{len(built_in())} instance types" in PRICES.prose
    with (ROOT / "src/dovetail/advice/instances.csv").open() as table:
        assert {row["cloud"] for row in csv.DictReader(table) if row["spot_usd_h_median"]} == {"gcp"}


def test_the_how_to_shows_what_is_printed() -> None:
    commands = [line for block in HOW_TO.blocks if block.language == "console" for line, _ in block.commands]
    shown = [block.text for block in HOW_TO.blocks if block.language == "text"]
    for text, line in zip(shown, commands, strict=True):
        result = CliRunner().invoke(cli, shlex.split(line)[1:], env=environment(120))
        assert [found.rstrip() for found in result.stdout.splitlines()] == text.splitlines()
