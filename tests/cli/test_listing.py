# SPDX-License-Identifier: Apache-2.0
"""The conventions of lists, which `queue`, `nodes`, `share`, `leases` and `free` have, too."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli, columns
from dovetail.cli.jobs import COLUMNS
from dovetail.cli.listing import ListColumns
from tests.cli.listed_jobs import AT, GPU, cluster, node, pod
from tests.terminal import environment

LISTS: dict[str, ListColumns[Any]] = {
    "jobs": COLUMNS, "queue": columns.QUEUE, "nodes": columns.NODES, "share": columns.SHARE,
    "leases": columns.LEASES, "free": columns.FREE,
}  # fmt: skip
LEASE = """
apiVersion: dovetail.dev/v1alpha1
kind: GPULease
metadata: {name: train, namespace: ada, creationTimestamp: "2026-11-22T11:00:00Z"}
spec:
  plane: ada
  fence: 1
  start: "2026-11-22T11:00:00Z"
  end: "2026-11-22T13:00:00Z"
  alternative: {devices: {resource: nvidia.com/gpu, count: 1}, duration: 2h}
  devices: [{node: g5, gpu: 0}]
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = tmp_path_factory.mktemp("lists") / "cluster.json"
    items = [*cluster(), yaml.safe_load(LEASE)]
    found.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(found)


def run(*arguments: str, width: int = 0) -> Result:
    return CliRunner().invoke(cli, arguments, env=environment(width) if width else {"COLUMNS": "80"})


def shown(file: str, *arguments: str, width: int = 0) -> str:
    result = run(*arguments, "-f", file, "--at", AT, width=width)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("command", LISTS)
def test_csv_has_each_column_and_a_line_for_each_row(file: str, command: str) -> None:
    found = shown(file, command, "-o", "csv")
    parsed = list(csv.reader(io.StringIO(found)))
    assert parsed[0] == [one.name for one in LISTS[command].columns]
    assert len(parsed) == len(found.splitlines()) > 1
    assert {len(line) for line in parsed} == {len(parsed[0])}
    assert shown(file, command, "-o", "csv", "--no-headers") == "".join(found.splitlines(keepends=True)[1:])


@pytest.mark.parametrize("command", LISTS)
def test_names_are_those_of_the_rows(file: str, command: str) -> None:
    by_csv = [row[LISTS[command].named_by] for row in csv.DictReader(io.StringIO(shown(file, command, "-o", "csv")))]
    assert shown(file, command, "-o", "name").splitlines() == by_csv


@pytest.mark.parametrize("command", LISTS)
def test_columns_and_headers_of_a_table(file: str, command: str) -> None:
    named, last = LISTS[command].named_by, LISTS[command].columns[-1]
    chosen = ("--columns", f"{named},{last.name}")
    head, *lines = [line.split() for line in shown(file, command, *chosen).splitlines()]
    rows = [line.split() for line in shown(file, command, *chosen, "--no-headers").splitlines()]
    assert " ".join(head).endswith(last.heading if last.heading is not None else last.name.replace("-", " "))
    assert lines[: len(rows)] == rows
    assert [row[0] for row in rows] == [name.split()[0] for name in shown(file, command, "-o", "name").splitlines()]


@pytest.mark.parametrize("command", LISTS)
def test_wide_has_each_heading(file: str, command: str) -> None:
    head = shown(file, command, "-o", "wide").splitlines()[0]
    for one in LISTS[command].columns:
        assert (one.heading if one.heading is not None else one.name.replace("-", " ")) in head


@pytest.mark.parametrize("command", LISTS)
def test_json_yaml_and_jsonpath_are_one_answer_with_a_version(file: str, command: str) -> None:
    found = json.loads(shown(file, command, "-o", "json"))
    assert yaml.safe_load(shown(file, command, "-o", "yaml")) == found
    assert json.loads(shown(file, command, "-o", "jsonpath={$}")) == found
    for one in found if isinstance(found, list) else [found]:
        assert (one["apiVersion"], bool(one["kind"])) == ("dovetail.dev/cli.v1", True)


@pytest.mark.parametrize("width", [0, 20, 60, 80, 200])
@pytest.mark.parametrize("command", LISTS)
@pytest.mark.slow
def test_names_stay_whole(file: str, command: str, width: int) -> None:
    expected = {word for line in shown(file, command, "-o", "name").splitlines() for word in line.split()}
    # The tables of `free` have a column for the numbers of GPUs, and the model above it.
    for form in ("table", "wide") if command != "free" else ("wide",):
        assert expected <= set(shown(file, command, "-o", form, width=width).split())


@pytest.mark.parametrize("command", LISTS)
def test_misspelt_columns(file: str, command: str) -> None:
    name = LISTS[command].named_by
    for option in ("--columns", "--sort-by"):
        result = run(command, "-f", file, option, f"{name}s")
        assert result.exit_code == 2 and f"did you mean {name}? There are " in result.output


@pytest.mark.slow
def test_each_column_can_be_sorted_by(file: str) -> None:
    for command, listing in LISTS.items():
        names = sorted(shown(file, command, "-o", "name").splitlines())
        for one in listing.columns:
            for sign in ("", "-"):
                assert sorted(shown(file, command, "-o", "name", f"--sort-by={sign}{one.name}").splitlines()) == names


def test_the_waiting_jobs(file: str) -> None:
    rows = {row["job"]: row for row in csv.DictReader(io.StringIO(shown(file, "queue", "-o", "csv")))}
    assert rows["ml/next"]["waiting"] == "2026-11-22T09:00:00Z" and rows["ml/next"]["nodes"] == "g1,g2,g3,g4"
    assert "when ml/train-3-abcde ends" in shown(file, "queue", "--basis")
    unknown = "The start of 1 job is not known: --basis shows why."
    assert unknown not in shown(file, "queue", "-o", "wide") + shown(file, "queue", "--no-headers")


def test_what_runs_on_a_node(file: str) -> None:
    found = {one["node"]: one for one in json.loads(shown(file, "nodes", "-o", "json"))}
    assert found["g1"]["jobs"] == ["ml/train"] and found["g1"]["used"] == 8
    assert found["m1"]["jobs"] == ["ml/slice"] and found["m1"]["used"] == 0
    assert found["g1"]["model"] == "NVIDIA-H100-80GB-HBM3" and found["g1"]["labels"]["pool"] == "g"
    assert shown(file, "nodes", "-l", "pool=m", "-o", "name") == "m1\n"
    assert shown(file, "nodes", "-l", "pool notin (m)", "-o", "name").splitlines() == [f"g{i}" for i in range(1, 6)]
    assert shown(file, "nodes", "-l", "pool=x") == "No GPU node is listed.\n"


def test_what_fits_by_size(file: str) -> None:
    rows = {row["size"]: row for row in csv.DictReader(io.StringIO(shown(file, "free", "-o", "csv")))}
    size = rows["8xNVIDIA-H100-80GB-HBM3"]
    assert (size["kind"], size["pods"], size["devices"], size["nodes"]) == ("gpu", "1", "48", "6")
    result = run("free", "--shape", "8", "-f", file, "-o", "csv")
    assert result.exit_code == 2 and "--shape shows tables" in result.output


def test_a_lease(file: str) -> None:
    rows = {row["lease"]: row for row in csv.DictReader(io.StringIO(shown(file, "leases", "-o", "csv")))}
    assert rows["ada/train"]["starts"] == "2026-11-22T11:00:00Z"


def test_a_command_that_does_not_exist() -> None:
    for arguments, message in (
        (["jbos"], "Error: no such command 'jbos'; did you mean jobs?\n"),
        (["queues"], "Error: no such command 'queues'; did you mean queue?\n"),
        (["plane", "serv"], "Error: no such command 'serv'; did you mean serve?\n"),
        (["xyzzy"], "Error: no such command 'xyzzy'\n"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2 and result.output.endswith(message)


def test_a_row_of_csv_is_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    odd = pod('x,"y"\nz', {GPU: "1"})
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node("g1"), odd]}))
    lines = shown(str(file), "jobs", "-o", "csv").splitlines()
    assert len(lines) == 2
    assert next(csv.DictReader(io.StringIO("\n".join(lines))))["job"] == 'ml/x,"y" z'
