# SPDX-License-Identifier: Apache-2.0
"""What `dovetail fabric import` writes is applied, and what a later import no longer has is removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from tests.paths import ROOT
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane
NODE = "fabric-labels"


def test_labels_are_set_and_taken_away(plane: Plane, tmp_path: Path) -> None:
    plane.kubectl(
        "create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    )
    try:
        nodes = tmp_path / "nodes.json"
        nodes.write_text(plane.kubectl("get", "nodes", "-o", "json"))
        for header, row in (("block,rack", "b,r"), ("rack", "r2")):
            table = tmp_path / "racks.csv"
            table.write_text(f"node,{header}\n{NODE},{row}\n")
            made = CliRunner().invoke(cli, ["fabric", "import", str(table), "--nodes", str(nodes), "-o", "yaml"])
            plane.kubectl("apply", "--server-side", "--field-manager=dovetail-fabric", "-f", "-", input=made.stdout)
        labels = json.loads(plane.kubectl("get", "node", NODE, "-o", "json"))["metadata"]["labels"]
        assert {key: value for key, value in labels.items() if "dovetail" in key} == {"dovetail.dev/rack": "r2"}
    finally:
        plane.kubectl("delete", "node", NODE)


def test_an_import_writes_labels_and_fabric_and_leaves_those_of_others(plane: Plane, tmp_path: Path) -> None:
    names = [f"{NODE}-{i}" for i in range(3)]
    table = tmp_path / "racks.csv"

    def imported(text: str, *more: str) -> str:
        table.write_text(text)
        on = ("--kubeconfig", str(plane.kubeconfig))
        made = CliRunner().invoke(cli, ["fabric", "import", str(table), "--apply", *on, *more])
        return made.stdout + made.stderr

    def racks() -> list[str]:
        found = json.loads(plane.kubectl("get", "nodes", *names, "-o", "json"))["items"]
        return [one["metadata"].get("labels", {}).get("dovetail.dev/rack", "") for one in found]

    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy/crds/fabric.yaml"))
    plane.kubectl("wait", "--for=condition=Established", "crd/fabrics.dovetail.dev", "--timeout=60s")
    try:
        for name in names:
            # The server writes down no manager of an object in which nobody ever set a field.
            meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            plane.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": meta}))
        both = f"node,rack\n{names[0]},a\n{names[1]},b\n"
        assert "labels of 2 nodes would be written" in imported(both, "--dry-run")
        assert racks() == ["", "", ""]
        assert "labels of 2 nodes written" in imported(both)
        assert racks() == ["a", "b", ""]
        plane.kubectl("label", "node", names[2], "dovetail.dev/rack=by-hand")
        assert "1 nodes have labels of another writer" in imported(f"{both}{names[2]},c\n")
        assert racks() == ["a", "b", "by-hand"]
        assert "1 node without them now" in imported(f"node,rack\n{names[0]},z\n")
        assert racks() == ["z", "", "by-hand"]
        status = json.loads(plane.kubectl("get", "fabric", "cluster", "-o", "json"))["status"]
        writers = {one["manager"]: one["nodes"] for one in status["labels"] if one["key"] == "dovetail.dev/rack"}
        assert writers == {"dovetail-fabric": 1, "kubectl-label": 1}
        assert [one["name"] for one in status["sources"]] == [str(table), "cluster"]
        assert all(one["since"].endswith("Z") for one in status["labels"])
    finally:
        plane.kubectl("delete", "node", *names, "--ignore-not-found")
        plane.kubectl("delete", "fabrics", "--all")
