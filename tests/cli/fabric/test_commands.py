# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric import`, `check` and `show`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.cli.fabric.sources import FORMAT_NAMES
from dovetail.topology.fabric import FabricPlacement, FabricReading
from dovetail.topology.slurm_topology import read_conf
from dovetail.views.fabric import FORMATS
from dovetail.views.fabric_plot import drawn
from tests.cli.clusters import CommandCluster, command_cluster, node
from tests.paths import ROOT

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
    assert "-o yaml needs --cluster or --nodes" in result.stderr


def test_the_tree(conf: str) -> None:
    assert run("show", conf).stdout.splitlines() == [
        f"{conf}: 4 nodes",
        "└─ top (4)",
        "   ├─ s1 (2): n[1-2]",
        "   └─ s2 (2): n[3-4]",
    ]


def test_the_answers_as_data(conf: str, tmp_path: Path) -> None:
    tree = json.loads(run("show", conf, "-o", "json").stdout)
    assert tree["sources"][0]["nodes"][2] == {"node": "n3", "path": ["top", "s2"]}
    table = written(tmp_path, "racks.csv", "node,rack\nn1,a\nn2,b\nn3,b\nn4,b\n")
    result = run("check", conf, table, "-o", "json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 1
    assert answer["sources"] == [{"source": conf, "nodes": 4}, {"source": table, "nodes": 4}]
    (finding,) = answer["findings"]
    assert (finding["source"], finding["severity"], finding["code"], finding["node"]) == (
        f"{conf}, {table}", "error", "disagreement", "n2",
    )  # fmt: skip


@pytest.fixture(scope="module")
def racked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandCluster]:
    """Four nodes, n1 and n2 in rack a, n3 and n4 in rack b; their names have a domain."""
    nodes = [node(f"n{at}.example.com") for at in range(1, 5)]
    for at, one in enumerate(nodes):
        one["metadata"]["labels"]["dovetail.dev/rack"] = "aabb"[at]
    with command_cluster(tmp_path_factory.mktemp("racked"), *nodes) as found:
        yield found


def on(cluster: CommandCluster, *args: str) -> Result:
    return run(*args, "--kubeconfig", str(cluster.config))


def test_without_a_file_the_labels_of_the_nodes_are_the_source(racked: CommandCluster) -> None:
    assert on(racked, "show").stdout.splitlines() == [
        "cluster: 4 nodes",
        "├─ a (2): n1.example.com,n2.example.com",
        "└─ b (2): n3.example.com,n4.example.com",
    ]
    result = on(racked, "check")
    assert (result.exit_code, result.stdout) == (0, "cluster: 4 nodes; 0 errors, 0 warnings\n")


def test_a_file_is_compared_with_the_labels_of_the_nodes(racked: CommandCluster, conf: str, tmp_path: Path) -> None:
    assert on(racked, "check", conf).stdout == f"cluster: 4 nodes, {conf}: 4 nodes; 0 errors, 0 warnings\n"
    moved = written(tmp_path, "racks.csv", "node,rack\nn1,a\nn2,b\nn3,b\nn4,b\n")
    result = on(racked, "check", moved)
    assert result.exit_code == 1
    assert f"cluster, {moved}: error: disagreement: n2.example.com: cluster has it in a, {moved} in b" in result.stdout


def test_an_import_has_the_names_of_the_cluster_and_may_contradict_its_labels(
    racked: CommandCluster, tmp_path: Path
) -> None:
    moved = written(tmp_path, "racks.csv", "node,rack\nn1,a\nn2,b\nother,b\n")
    objects = list(yaml.safe_load_all(on(racked, "import", moved, "-o", "yaml").stdout))
    assert {one["metadata"]["name"]: one["metadata"]["labels"]["dovetail.dev/rack"] for one in objects} == {
        "n1.example.com": "a",
        "n2.example.com": "b",
    }


def test_a_cluster_without_labels_of_a_network(tmp_path: Path) -> None:
    table = written(tmp_path, "racks.csv", "node,rack\nn1,a\n")
    with command_cluster(tmp_path, node("n1")) as bare:
        result = on(bare, "show")
        assert (result.exit_code, "cluster: no node has a label of a network" in result.stderr) == (1, True)
        result = on(bare, "show", table)
        assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "└─ a (1): n1")
        assert "note: cluster: no node has a label" in result.stderr


def test_spares_are_shown_and_domains_with_too_few_are_found(tmp_path: Path) -> None:
    """Racks of three trays: one of rack b is broken, and no gang runs there; rack c has no node beside its spares."""
    nodes = [node(f"n{at}") for at in range(1, 9)]
    for at, one in enumerate(nodes):
        one["metadata"]["labels"]["dovetail.dev/rack"] = "aaabbbcc"[at]
    nodes[3]["spec"] = {"unschedulable": True}
    definition = yaml.safe_load((ROOT / "deploy/crds/fabric.yaml").read_text())
    rules = {"spares": [{"key": "dovetail.dev/rack", "perDomain": 2}]}
    fabric = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Fabric", "metadata": {"name": "cluster"}, "spec": rules}
    with command_cluster(tmp_path, definition, *nodes, fabric, still=True) as held:
        assert on(held, "show").stdout.splitlines()[-3:] == [
            "spares: dovetail.dev/rack a: 2 of 2: n[2-3]",
            "spares: dovetail.dev/rack b: 1 of 2: n6; out of order: n4",
            "spares: dovetail.dev/rack c: 2 of 2: n[7-8]",
        ]
        shown = json.loads(on(held, "show", "-o", "json").stdout)["spares"]
        wanted = {"key": "dovetail.dev/rack", "domain": "b", "nodes": 3, "wanted": 2}
        assert shown[1] == {**wanted, "spares": ["n6"], "out_of_order": ["n4"]}
        result = on(held, "check")
        assert result.exit_code == 0
        assert "warning: few-spares: dovetail.dev/rack b has 1 of 2 spares; out of order: n4" in result.stdout
        assert "only-spares: dovetail.dev/rack c has 2 nodes with GPUs, of which the rule holds 2" in result.stdout
        free = held.run("free", "--kubeconfig", str(held.config)).stdout
        assert "16 of 64 GPUs on 8 nodes are free, 8 of them on closed nodes, 40 on spare nodes" in free
        listed = held.run("nodes", "--kubeconfig", str(held.config)).stdout
        assert "spares of their domain, held for the gangs that run there: n[2-3,6-8]" in listed


def test_nodes_are_named_by_a_file_or_a_cluster(conf: str) -> None:
    result = run("check", conf, "--cluster", "--nodes", conf)
    assert (result.exit_code, "use one of them" in result.stderr) == (2, True)


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


def test_a_picture_of_all_sources(conf: str, tmp_path: Path) -> None:
    # Names are no formulas: one dollar sign and another would begin and end one.
    other = written(tmp_path, "racks.csv", "row,rack,node\nr$1,a$,n1\nr$1,a$,n2\nr$1,b,n3\n")
    picture = tmp_path / "fabric.png"
    result = run("show", conf, other, "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"drawn: {picture}" in "".join(result.stderr.splitlines())
    assert result.stdout == run("show", conf, other).stdout
    assert "there is no folder" in run("show", conf, "--plot", str(tmp_path / "no" / "a.png")).stderr
    (tmp_path / "folder.png").mkdir()
    assert run("show", conf, "--plot", str(tmp_path / "folder.png")).exit_code == 2


def test_the_bars_of_a_picture_are_the_domains_with_their_nodes() -> None:
    places = (("n1", "r", "a"), ("n2", "r", "a"), ("n3", "r", "b"), ("n4", "s", "a"))
    reading = FabricReading(tuple(FabricPlacement(node, tuple(path)) for node, *path in places), ())
    figure = drawn({"one": reading, "two": FabricReading((), ())})
    bars = [(round(bar.get_x()), round(bar.get_width())) for bar in figure.axes[0].patches]
    assert bars == [(0, 3), (3, 1), (0, 2), (2, 1), (3, 1)]
    colors = [bar.get_facecolor() for bar in figure.axes[0].patches]
    assert len(set(colors[:2])) == 1
    assert not figure.axes[1].patches
