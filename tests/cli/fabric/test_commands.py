# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric import`, `check` and `show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.cli.fabric.sources import FORMAT_NAMES
from dovetail.topology.slurm_topology import read_conf
from dovetail.views.fabric import FORMATS

CONF = "SwitchName=top Switches=s1,s2\nSwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-4]\n"
SPINE, BLOCK = "network.topology.nvidia.com/spine", "network.topology.nvidia.com/block"


@pytest.fixture
def conf(tmp_path: Path) -> str:
    return written(tmp_path, "topology.conf", CONF)


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["fabric", *args])


def test_labels_as_a_table(conf: str) -> None:
    result = run("import", conf)
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["node", SPINE, BLOCK],
        *([f"n{at}", "top", f"s{(at + 1) // 2}"] for at in range(1, 5)),
    ]


def test_labels_as_objects_and_keys_of_ones_own(conf: str, tmp_path: Path) -> None:
    items = [{"metadata": {"name": f"n{at}"}} for at in range(1, 5)]
    nodes = written(tmp_path, "nodes.json", json.dumps({"items": items}))
    result = run("import", conf, "-o", "yaml", "--keys", "example.com/row,example.com/rack", "--nodes", nodes)
    objects = list(yaml.safe_load_all(result.stdout))
    assert objects[0] == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"example.com/row": "top", "example.com/rack": "s1"}},
    }
    assert len(objects) == 4
    result = run("import", conf, "--keys", "example.com/rack")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there are 2 levels and 1 label keys" in result.stderr


@pytest.mark.parametrize("output", ["topology.conf", "topology.yaml"])
def test_places_for_slurm(conf: str, tmp_path: Path, output: str) -> None:
    again = written(tmp_path, f"again-{output}", run("import", conf, "-o", output).stdout)
    if output == "topology.conf":
        assert read_conf(Path(again).read_text()).placements == read_conf(CONF).placements
    assert run("check", conf, again).exit_code == 0


def test_sources_that_disagree_are_refused(conf: str, tmp_path: Path) -> None:
    table = written(tmp_path, "racks.csv", "node,rack\nn1,a\nn2,b\nn3,b\nn4,b\n")
    checked = run("check", conf, table)
    assert checked.exit_code == 1
    assert (
        f"{conf}, {table}: error: disagreement: n2: {conf} has it in top / s1, {table} in b; find out" in checked.stdout
    )
    assert checked.stdout.endswith("4 nodes; 1 error, 0 warnings\n")
    imported = run("import", conf, table)
    assert (imported.exit_code, imported.stdout) == (1, "")
    assert "disagreement: n2" in imported.stderr
    assert "nothing is imported" in imported.stderr


def test_names_of_nodes(conf: str, tmp_path: Path) -> None:
    nodes = [{"metadata": {"name": f"n{at}.example.com"}} for at in (1, 3)]
    result = run("import", conf, "--nodes", written(tmp_path, "nodes.json", json.dumps({"items": nodes})))
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["n1.example.com", "n3.example.com"]
    assert result.stderr == ""
    result = run("import", conf, "--nodes", written(tmp_path, "nodes.json", '{"items": [{"metadata": {"name": "x"}}]}'))
    assert (result.exit_code, "no host is one of the nodes" in result.stderr) == (1, True)


def test_objects_are_only_of_nodes_that_exist(conf: str) -> None:
    result = run("import", conf, "-o", "yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "-o yaml needs --nodes" in result.stderr


def test_the_tree(conf: str) -> None:
    assert run("show", conf).stdout.splitlines() == [
        f"{conf}: 4 nodes",
        "└─ top (4)",
        "   ├─ s1 (2): n[1-2]",
        "   └─ s2 (2): n[3-4]",
    ]


def test_faults_of_files_name_the_file(conf: str, tmp_path: Path) -> None:
    bad = written(tmp_path, "bad", "SwitchName=a Nodes=n[\n")
    result = run("check", conf, bad)
    assert (result.exit_code, f"Error: {bad}: line 1: a: 'n[' is no hostlist" in result.stderr) == (1, True)
    assert run("check", conf, conf).exit_code == 2
    assert run("check", conf, "--format", "aws").exit_code == 1


def test_the_formats_to_choose_from_are_those_that_are_read() -> None:
    assert tuple(one.name for one in FORMATS) == FORMAT_NAMES


def test_a_name_cannot_mark_up_the_terminal(tmp_path: Path) -> None:
    table = written(tmp_path, "racks.csv", "node,rack\n[red]n1[/],a\n")
    assert "[red]n1[/]" in run("show", table).stdout
    assert "[red]n1[/]" in run("import", table).stdout
