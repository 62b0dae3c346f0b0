# SPDX-License-Identifier: Apache-2.0
"""-w: what is printed when a list is read again."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from msgspec import Struct

from dovetail.cli import cli, watching
from dovetail.cli.console import Console
from dovetail.cli.listing import TABLE, ListColumn, ListColumns, ListForm
from tests.cli.listed_jobs import AT, GPU, ended, node, pod
from tests.live.conftest import eventually


class Row(Struct, frozen=True):
    name: str
    state: str
    at_s: int = 0


COLUMNS: ListColumns[Row] = ListColumns(
    (
        ListColumn("name", lambda row: row.name),
        ListColumn("state", lambda row: row.state),
        ListColumn("at", lambda row: datetime.fromtimestamp(row.at_s, UTC) if row.at_s else None),
    ),
    named_by="name",
    state="state",
)
LONG = "a-rather-long-name"
READS: list[list[Row] | str] = [
    [Row("a", "Waiting"), Row(LONG, "Running", 1)],
    [Row("a", "Waiting"), Row(LONG, "Running", 2)],
    "the server is away",
    [Row("a", "Running", 5)],
    [Row("a", "Running", 6), Row("a", "Waiting")],
]


class Over(Exception):
    """There is no further read."""


def watched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: ListForm
) -> tuple[list[str], list[float]]:
    """What is printed of READS, and how long was waited before each read but the first."""
    reads: Iterator[list[Row] | str] = iter(READS)
    waits: list[float] = []
    monkeypatch.setattr(watching.time, "sleep", waits.append)

    def read() -> tuple[list[Row], int]:
        found = next(reads, None)
        if found is None:
            raise Over
        if isinstance(found, str):
            raise click.ClickException(found)
        return found, 60_000

    with pytest.raises(Over):
        watching.watch_rows(read, form, COLUMNS, 10, Console())
    printed = capsys.readouterr()
    assert printed.err == "attention: the server is away: tried again in 10 s\n"
    return printed.out.splitlines(), waits


def test_rows_that_changed_stand_below_the_first_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, waits = watched(monkeypatch, capsys, TABLE)
    assert [line.split() for line in lines] == [
        ["name", "state", "at"],
        ["a", "Waiting", "-"],
        [LONG, "Running", "1970-01-01T00:00:01Z"],
        # A time that moves is no change; one that becomes known is.
        ["a", "Running", "1970-01-01T00:00:05Z"],
        [LONG, "Gone", "1970-01-01T00:00:02Z"],
        ["a", "Waiting", "-"],
    ]
    assert len({line.index(line.split()[1]) for line in lines}) == 1
    assert waits == [10] * 5


def test_csv_has_its_first_line_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = watched(monkeypatch, capsys, ListForm("csv", columns=("name", "state")))
    assert lines == [
        "name,state", "a,Waiting", f"{LONG},Running", "a,Running", f"{LONG},Gone", "a,Waiting",
    ]  # fmt: skip


def test_the_first_read_has_to_succeed() -> None:
    def read() -> tuple[list[Row], int]:
        raise click.ClickException("no")

    with pytest.raises(click.ClickException, match="no"):
        watching.watch_rows(read, TABLE, COLUMNS, 1, Console(file=io.StringIO()))


@pytest.mark.parametrize("command", ["jobs", "queue", "nodes"])
def test_what_cannot_be_read_again(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "-w", "-f", "-"], input="{}")
    assert result.exit_code == 2 and "name a file in place of - (standard input)" in result.output
    result = CliRunner().invoke(cli, [command, "-w", "--interval", "10"])
    assert result.exit_code == 2 and "'10' is not a duration with units" in result.output


@pytest.mark.slow
async def test_the_life_of_a_job(tmp_path: Path) -> None:
    """It waits, runs, completes although --all is not asked for, and is gone."""
    file, out = tmp_path / "cluster.json", tmp_path / "out"

    def put(*pods: dict[str, Any]) -> None:
        (tmp_path / "new").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node("g1"), *pods]}))
        (tmp_path / "new").rename(file)

    async def printed() -> list[list[str]]:
        return [line.split() for line in out.read_text().splitlines()]

    put(pod("p", {GPU: "16"}))
    command = ("jobs", "-w", "--interval", "1s", "--columns", "job,state", "--file", str(file), "--at", AT)
    with out.open("w") as stream:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from dovetail.cli import main; main()", *command, stdout=stream
        )
    try:
        found = [["job", "state"], ["ml/p", "Waiting"]]
        await eventually(printed, lambda lines: lines == found)
        for state, pods in (
            ("Running", [pod("p", {GPU: "16"}, "g1")]),
            ("Completed", [ended(pod("p", {GPU: "16"}, "g1"))]),
            ("Gone", []),
        ):
            put(*pods)
            found = [*found, ["ml/p", state]]
            await eventually(printed, lambda lines, found=found: lines == found)
    finally:
        process.terminate()
        await process.wait()
