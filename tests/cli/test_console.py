# SPDX-License-Identifier: Apache-2.0
"""What commands print for people: no name is cut or broken, on whatever terminal and in a pipe."""

from __future__ import annotations

import ast
import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import dovetail.cli
from dovetail.cli import cli
from dovetail.cli.console import Console, Table, prose, right
from tests.terminal import on_terminal

NAMES = st.text("abcdefghijklmnop-.0123456789/", min_size=1, max_size=253)
SENTENCES = st.lists(NAMES, max_size=12).map(" ".join)
ROWS = st.lists(st.tuples(NAMES, SENTENCES, NAMES, SENTENCES), min_size=1, max_size=5)


def piped(show: Callable[[Console], None]) -> str:
    out = io.StringIO()
    show(Console(file=out))
    return out.getvalue()


def table(rows: list[tuple[str, str, str, str]]) -> Table:
    made = Table("name", prose("why"), right("number"), prose("basis"))
    for row in rows:
        made.add_row(*row)
    return made


@pytest.mark.slow
@given(ROWS, st.integers(20, 300))
def test_every_name_of_a_table_stands_whole_in_one_line(rows: list[tuple[str, str, str, str]], width: int) -> None:
    for printed in (piped(lambda out: out.print(table(rows))), on_terminal(lambda out: out.print(table(rows)), width)):
        assert {word for row in rows for cell in row for word in cell.split()} <= set(printed.split())


@pytest.mark.slow
@given(ROWS)
def test_a_row_is_one_line_of_a_pipe(rows: list[tuple[str, str, str, str]]) -> None:
    lines = piped(lambda out: out.print(table(rows))).splitlines()
    assert [line.split() for line in lines[1:]] == [[word for cell in row for word in cell.split()] for row in rows]
    assert all(line == line.rstrip() for line in lines)


@given(SENTENCES, st.integers(20, 300))
def test_sentences_break_between_words_of_a_terminal_and_nowhere_in_a_pipe(text: str, width: int) -> None:
    assert piped(lambda out: out.print(text)) == f"{text}\n"
    shown = on_terminal(lambda out: out.print(text), width)
    assert shown.split() == text.split()
    assert all(len(line) <= max(width, *map(len, [*text.split(), ""])) for line in shown.splitlines())


def test_prose_is_narrower_than_names_on_a_terminal() -> None:
    rows = table([("team/" + "x" * 40, "word " * 30, "8", "word " * 30)])
    assert all(len(line) <= 80 for line in on_terminal(lambda out: out.print(rows), 80).splitlines())


def test_rows_that_fit_nowhere_are_one_line_each() -> None:
    rows = table([("team/" + "x" * 60, "word " * 30, "8", "word " * 30)])
    assert len(on_terminal(lambda out: out.print(rows), 60).splitlines()) == 2


def test_a_terminal_shows_the_first_rows_and_a_pipe_all_of_them() -> None:
    rows = [(f"pod-{i}",) for i in range(30)]
    assert "pod-29" in piped(lambda out: out.print_rows(Table("pod"), rows, 20))
    shown = on_terminal(lambda out: out.print_rows(Table("pod"), rows, 20), 80)
    assert "pod-19" in shown and "pod-20" not in shown
    assert "and 10 more; a pipe or -o json shows all" in shown


@pytest.mark.slow
def test_ten_thousand_rows_are_printed_in_seconds() -> None:
    """rich takes twenty for a table of its own."""
    made = Table("job", "user", "queue", right("GPUs"), "state", "nodes", "reason", "starts", "ends", "submitted")
    for i in range(10_000):
        made.add_row(
            f"team/train-{i}", "ada", "research", "8", "[green]Running[/]", f"gpu-{i}", "", "2 h", "3 h", "5 h"
        )
    begun_s = time.process_time()
    for printed in (piped(lambda out: out.print(made)), on_terminal(lambda out: out.print(made), 80)):
        assert len(printed.splitlines()) == 10_001
    assert time.process_time() - begun_s < 8


def test_a_table_keeps_the_widths_of_one_above_it() -> None:
    first, second = Table("name", "state"), Table("name", "state", show_header=False)
    first.add_row("a-long-name", "Running")
    second.add_row("b", "Waiting")
    above = piped(lambda out: out.print(first))
    second.widths = first.widths
    assert piped(lambda out: out.print(second)).index("Waiting") == above.splitlines()[1].index("Running")


@pytest.mark.slow
def test_all_commands_print_so() -> None:
    """rich itself cuts what is wider than 80 columns wherever there is no terminal."""
    for path in Path(dovetail.cli.__file__).parent.glob("*.py"):
        imports = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
        assert path.name == "terminal.py" or not imports & {"rich.console", "rich.table"}, path.name


NAME = "a-team-with-a-rather-long-name-of-its-own/" + "-".join(["pretraining"] * 8)
NODE = "gpu-node-" + "-".join(["eu-west-1a"] * 9)
CLUSTER = f"""
apiVersion: v1
kind: Node
metadata: {{name: {NODE}}}
status: {{allocatable: {{cpu: "64", memory: 512Gi, pods: "110", nvidia.com/gpu: "8"}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {NAME.partition("/")[2]}-runs, namespace: {NAME.partition("/")[0]}}}
spec:
  nodeName: {NODE}
  schedulerName: dovetail
  containers: [{{name: main, image: busybox, resources: {{limits: {{nvidia.com/gpu: "8", cpu: "8", memory: 8Gi}}}}}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: {NAME.partition("/")[2]}-waits, namespace: {NAME.partition("/")[0]}}}
spec:
  schedulerName: dovetail
  containers: [{{name: main, image: busybox, resources: {{limits: {{nvidia.com/gpu: "4", cpu: "8", memory: 8Gi}}}}}}]
"""


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (["queue", "-f", "-"], [f"{NAME}-waits"]),
        (["why", f"{NAME}-waits", "-f", "-"], [f"{NAME}-waits", f"{NAME}-runs", NODE]),
        (["why", f"{NAME}-runs", "-f", "-"], [f"{NAME}-runs", NODE]),
        (["priority", f"{NAME}-waits", "-f", "-"], [f"{NAME}-waits"]),
        (["share", "-f", "-"], [f"{NAME}-waits"]),
        (["free", "-f", "-"], [NODE, f"{NAME}-runs"]),
        (["defrag", f"{NAME}-waits", "-f", "-"], [f"{NAME}-waits"]),
        (["whatif", "drain", NODE, "-f", "-"], [f"{NAME}-runs"]),
        (["simulate", "-"], [f"{NAME}-waits"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_grep_finds_names_in_what_commands_print(command: list[str], names: list[str]) -> None:
    result = CliRunner().invoke(cli, command, input=CLUSTER, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    for name in names:
        assert any(name in line for line in result.stdout.splitlines()), result.stdout


def test_headings_are_bold_on_a_terminal() -> None:
    env = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "200"}
    result = CliRunner().invoke(cli, ["queue", "-f", "-"], input=CLUSTER, env=env)
    assert "\x1b[1mjob\x1b[0m" in result.stdout and "\x1b[1mreason\x1b[0m" in result.stdout
