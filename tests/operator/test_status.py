# SPDX-License-Identifier: Apache-2.0
"""The status of a GPUStack as it is written."""

from __future__ import annotations

import json

import pytest

from dovetail.kube.objects.stack import NodeCounts, StackStatus
from dovetail.operator.status import document
from tests.paths import ROOT
from tools.controlplane.plane import Plane


def test_a_map_without_entries_is_left_out() -> None:
    assert document(StackStatus(nodes=NodeCounts(nodes=1, steps={"driver": 1})))["nodes"]["steps"] == {"driver": 1}
    assert "steps" not in document(StackStatus(nodes=NodeCounts()))["nodes"]


@pytest.mark.plane
def test_a_real_server_takes_a_status_whose_last_blocked_node_is_gone(plane: Plane) -> None:
    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy/crds/gpustack.yaml"))
    plane.kubectl("wait", "--for=condition=Established", "crd/gpustacks.dovetail.dev", "--timeout=60s")
    stack = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUStack", "metadata": {"name": "counted"}}
    plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(stack))
    for steps in ({"driver": 1}, {}):
        written = stack | {"status": document(StackStatus(nodes=NodeCounts(nodes=1, steps=steps)))}
        arguments = ("apply", "--server-side", "--subresource=status", "--field-manager=dovetail-operator", "-f", "-")
        plane.kubectl(*arguments, input=json.dumps(written))
    nodes = json.loads(plane.kubectl("get", "gpustack", "counted", "--output=json"))["status"]["nodes"]
    assert (nodes["nodes"], nodes.get("steps", {})) == (1, {})
    plane.kubectl("delete", "gpustack", "counted")
