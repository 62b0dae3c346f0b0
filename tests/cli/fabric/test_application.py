# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric import --apply`: labels of nodes, and the record of their sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.resources import NODES
from tests.cli.clusters import CommandCluster, Document, command_cluster, node
from tests.paths import ROOT

RACK, BLOCK = "dovetail.dev/rack", "dovetail.dev/block"
FABRICS = "fabrics.dovetail.dev"
DEFINITION: Document = yaml.safe_load((ROOT / "deploy/crds/fabric.yaml").read_text())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CommandCluster]:
    with command_cluster(tmp_path, DEFINITION, *(node(f"n{at}") for at in range(1, 4))) as one:
        yield one


def imported(cluster: CommandCluster, tmp_path: Path, table: str, *args: str) -> Result:
    file = tmp_path / "racks.csv"
    file.write_text(table)
    return CliRunner().invoke(
        cli, ["fabric", "import", str(file), "--apply", "--kubeconfig", str(cluster.config), *args]
    )


def labels(cluster: CommandCluster) -> dict[str, Document]:
    found = {}
    for name in cluster.names("nodes"):
        one = cluster.get("nodes", name, "")
        assert one is not None
        found[name] = {key: value for key, value in one["metadata"]["labels"].items() if key in (RACK, BLOCK)}
    return found


def status(cluster: CommandCluster) -> Document:
    found = cluster.get(FABRICS, "cluster", "")
    assert found is not None
    answer: Document = found["status"]
    return answer


def test_a_dry_run_writes_nothing(cluster: CommandCluster, tmp_path: Path) -> None:
    result = imported(cluster, tmp_path, "node,rack\nn1,a\nn2,b\n", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "labels of 2 nodes would be written; 0 had them\n")
    assert not any(labels(cluster).values())
    assert cluster.names(FABRICS) == []


def test_labels_sources_and_writers(cluster: CommandCluster, tmp_path: Path) -> None:
    result = imported(cluster, tmp_path, "node,block,rack\nn1,x,a\nn2,x,b\nother,x,b\n")
    assert (result.exit_code, result.stdout) == (0, "labels of 2 nodes written; 0 had them\n"), result.output
    assert labels(cluster) == {"n1": {BLOCK: "x", RACK: "a"}, "n2": {BLOCK: "x", RACK: "b"}, "n3": {}}
    (source,) = status(cluster)["sources"]
    assert (source["name"], source["nodes"], source["keys"]) == (str(tmp_path / "racks.csv"), 2, [BLOCK, RACK])
    assert source["domains"] == [{"path": ["x", "a"], "nodes": "n1"}, {"path": ["x", "b"], "nodes": "n2"}]
    assert status(cluster)["conditions"][0]["status"] == "True"
    since = status(cluster)["conditions"][0]["lastTransitionTime"]
    # The next import takes away what it does not have, and finds with what the nodes were labelled.
    result = imported(cluster, tmp_path, "node,rack\nn1,a\nn3,b\n")
    assert result.stdout == "labels of 3 nodes written, 1 node without them now; 0 had them\n"
    assert labels(cluster) == {"n1": {RACK: "a"}, "n2": {}, "n3": {RACK: "b"}}
    assert [(one["key"], one["manager"], one["nodes"]) for one in status(cluster)["labels"]] == [
        (RACK, "dovetail-fabric", 2),
    ]
    assert status(cluster)["conditions"][0]["lastTransitionTime"] == since
    assert [one["name"] for one in status(cluster)["sources"]] == [str(tmp_path / "racks.csv"), "cluster"]
    assert imported(cluster, tmp_path, "node,rack\nn1,a\nn3,b\n").stdout == "labels of 0 nodes written; 2 had them\n"


def test_labels_of_another_writer_are_left_and_nothing_is_written(cluster: CommandCluster, tmp_path: Path) -> None:
    theirs = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2", "labels": {RACK: "by-hand"}}}

    async def by_hand() -> None:
        async with Client(load_config(str(cluster.config))) as client:
            await client.apply(NODES.path(name="n2"), theirs, field_manager="kubectl")

    cluster.wait(by_hand())
    result = imported(cluster, tmp_path, "node,rack\nn1,a\nn2,b\n")
    assert result.exit_code == 1
    assert "1 nodes have labels of another writer" in result.stderr
    assert not labels(cluster)["n1"]


def test_it_needs_a_cluster_with_fabrics_and_no_other_output(tmp_path: Path) -> None:
    with command_cluster(tmp_path, node("n1")) as bare:
        result = imported(bare, tmp_path, "node,rack\nn1,a\n")
        assert (result.exit_code, "apply deploy/crds/fabric.yaml first" in result.stderr) == (1, True)
        for option in (("-o", "yaml"), ("--nodes", "x")):
            assert imported(bare, tmp_path, "node,rack\nn1,a\n", *option).exit_code == 2
    assert CliRunner().invoke(cli, ["fabric", "import", "x", "--dry-run"]).exit_code == 2


def test_check_finds_a_label_that_was_changed_after_the_import_and_show_has_what_the_fabric_states(
    cluster: CommandCluster, tmp_path: Path
) -> None:
    on = ("--kubeconfig", str(cluster.config))
    assert imported(cluster, tmp_path, "node,rack\nn1,a\nn2,a\nn3,b\n").exit_code == 0
    assert CliRunner().invoke(cli, ["fabric", "check", *on]).exit_code == 0
    moved = cluster.get("nodes", "n2", "")
    assert moved is not None
    moved["metadata"]["labels"][RACK] = "b"
    cluster.put({"apiVersion": "v1", "kind": "Node"} | moved)
    checked = CliRunner().invoke(cli, ["fabric", "check", *on])
    assert checked.exit_code == 1
    assert "disagreement: n2: cluster has it in b, imported" in checked.stdout
    fabric = cluster.get(FABRICS, "cluster", "")
    assert fabric is not None
    slow = {"name": "n1", "measuredMBps": 20_000, "expectedMBps": 45_000}
    times = {"measuredAt": "2026-03-01T10:00:00Z", "expiresAt": "2026-03-08T10:00:00Z"}
    fabric["spec"] = {"levels": [{"key": RACK, "bandwidthMBps": 50_000, "latencyNs": 20_000, "source": "data sheet"}]}
    fabric["status"]["slow"] = [slow | times]
    cluster.put(fabric | {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Fabric"})
    shown = CliRunner().invoke(cli, ["fabric", "show", *on], env={"COLUMNS": "200"}).stdout.splitlines()
    assert f"speed: {RACK}: 50 GB/s, 20 us a hop (data sheet)" in shown
    assert "slow: n1: 20.0 of 45.0 GB/s, 2026-03-01 10:00; counts until 2026-03-08 10:00" in shown
    assert any(line.startswith(f"label: {RACK}: by dovetail-fabric on 3 nodes, last at 2") for line in shown)
