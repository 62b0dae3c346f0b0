# SPDX-License-Identifier: Apache-2.0
"""From Nodes, CSINodes and Namespaces to core records."""

import pytest

from dovetail.core import model
from dovetail.core.events import NodeChanged
from dovetail.core.model import Maintenance, Taint
from dovetail.kube.api.reflector import Change
from dovetail.kube.objects.base import Namespace, Node
from dovetail.kube.objects.storage import CSINode
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate import nodes
from dovetail.kube.translate.node_records import NodeRecords
from tests.kube.yaml_objects import wire

GIB = 2**30


def test_a_node() -> None:
    record = nodes.node(
        wire(
            Node,
            """
metadata: {name: n1, labels: {zone: a, rack: r1}, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {unschedulable: true, taints: [{key: gpu, value: h100, effect: NoSchedule, timeAdded: "2026-01-01T00:00:00Z"}]}
status:
  allocatable: {cpu: 63500m, memory: 512Gi, pods: "110", nvidia.com/gpu: "8", hugepages-2Mi: "0"}
  conditions: [{type: Ready, status: "False"}]
""",
        ),
        wire(
            CSINode,
            """
metadata: {name: n1}
spec: {drivers: [{name: disk.csi, allocatable: {count: 24}}, {name: any.csi}, {name: zero.csi, allocatable: {}}]}
""",
        ),
    )
    assert record.allocatable == (
        ("cpu", 63500), ("memory", 512 * GIB), ("nvidia.com/gpu", 8), ("pods", 110),
    )  # fmt: skip
    assert record.labels == (("rack", "r1"), ("zone", "a"))
    assert record.taints == (Taint("gpu", "h100", "NoSchedule"),)
    assert (record.unschedulable, record.created_ms) == (True, 1767225600000)
    assert record.attach_limits == (("disk.csi", 24),)
    assert record.problem is None


@pytest.mark.parametrize(
    ("text", "field", "rule"),
    [
        ("status: {}", "status.allocatable", "missing"),
        ("status: {allocatable: {}}", "status.allocatable", "missing"),
        ("status: {allocatable: {cpu: '?', pods: 1}}", "status.allocatable[cpu]", "is not a quantity"),
        ("status: {allocatable: {nvidia.com/gpu: -8}}", "status.allocatable[nvidia.com/gpu]", "must not be negative"),
        ("{status: {allocatable: {cpu: 1}}, spec: {taints: [{key: a, effect: NoShedule}]}}",
         "spec.taints[0].effect", "nearest valid value: NoSchedule"),
    ],
)  # fmt: skip
def test_a_node_that_cannot_be_used_states_why(text: str, field: str, rule: str) -> None:
    problem = nodes.node(wire(Node, text)).problem
    assert problem is not None
    assert problem.field == field
    assert rule in problem.rule


def test_a_node_without_a_number_of_pods_takes_none() -> None:
    record = nodes.node(wire(Node, "status: {allocatable: {cpu: 1}}"))
    assert (record.allocatable, record.problem) == ((("cpu", 1000),), None)


def test_a_namespace() -> None:
    record = nodes.namespace(wire(Namespace, "metadata: {name: ml, labels: {team: z, env: prod}}"))
    assert record == model.Namespace("ml", (("env", "prod"), ("team", "z")))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("{id: a}", Maintenance()),
        ("{id: a, drain: Evict, requested: '2026-11-22T00:00:00Z', start: '2026-11-22T01:00:00Z'}",
         Maintenance("Evict", 1795305600000, 1795309200000)),
        ("{id: a, drain: WaitForCheckpoint}", Maintenance("WaitForCheckpoint")),
        ("{id: a, drain: Whatever}", Maintenance()),
    ],
)  # fmt: skip
def test_a_node_in_maintenance(asked: str, expected: Maintenance) -> None:
    records = NodeRecords(lambda _name, _findings, _origin="": None)
    offer = "{metadata: {name: n1}, status: {allocatable: {cpu: 1, pods: 10}}}"
    [before] = records.nodes([Change("added", wire(Node, offer))])
    assert isinstance(before, NodeChanged) and before.node.maintenance is None
    gpu_node = wire(GPUNode, f"{{metadata: {{name: n1}}, spec: {{maintenance: {asked}}}}}")
    [after] = records.gpu_nodes([Change("added", gpu_node)])
    assert isinstance(after, NodeChanged) and after.node.maintenance == expected
    [ended] = records.gpu_nodes([Change("deleted", gpu_node)])
    assert ended == before
