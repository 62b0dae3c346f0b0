# SPDX-License-Identifier: Apache-2.0
"""What `dovetail fabric import` writes is applied by kubectl, and what a later import no longer has is removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
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
