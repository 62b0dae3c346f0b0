# SPDX-License-Identifier: Apache-2.0
"""GPUNode, ResourceSlices, NodeResourceTopology and labels: the facts of each, which one counts, and the findings."""

from __future__ import annotations

from copy import deepcopy
from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.devices.kubelet.inventory import DevicePool, Inventory, ManagedDevice
from dovetail.core.devices.layout import BOARD, NODE, PHB, SYS, UNKNOWN
from dovetail.core.devices.products import assumed_layout
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.translate.translator import Translator
from tests.kube.nodes.inside import GPU_NODE, feed_of, gpu_node, node, slice_of, wiring, zones
from tests.kube.yaml_objects import Change, added, deleted

A100 = "NVIDIA-A100-SXM4-80GB"
NUMA, ROOT, BUS = (f"resource.kubernetes.io/{name}" for name in ("numaNode", "pcieRoot", "pciBusID"))
SLICE = f"""
- {{name: gpu-0, attributes: {{type: gpu, uuid: GPU-c, {NUMA}: 1, {ROOT}: pci0000:b0, {BUS}: "0000:b3:00.0"}}}}
- {{name: gpu-1, attributes: {{type: gpu, uuid: GPU-d, {NUMA}: [1, 0], {ROOT}: pci0000:b0, {BUS}: "0000:b4:00.0"}}}}
- {{name: gpu-2, attributes: {{type: gpu, uuid: GPU-a, {NUMA}: 0, {ROOT}: pci0000:10, {BUS}: "0000:19:00.0"}}}}
- {{name: gpu-3, attributes: {{gpu.nvidia.com/type: gpu, uuid: GPU-b, {NUMA}: 0, {BUS}: "0000:1a:00.0"}}}}
- {{name: gpu-9-mig-1, attributes: {{type: mig, uuid: MIG-x, {NUMA}: 0}}}}
"""
TWO_ZONES = """
- {name: node-0, type: Node, costs: [{name: node-0, value: 10}, {name: node-1, value: 21}],
   resources: [{name: nvidia.com/gpu, capacity: "%d"}, {name: cpu, capacity: "32"}, {name: rdma/hca, capacity: 2}]}
- {name: node-1, type: Node, costs: [{name: node-0, value: 21}, {name: node-1, value: 10}],
   resources: [{name: nvidia.com/gpu, capacity: "%d"}]}
- {name: socket-0, type: Socket}
"""


def problems(found: tuple[LayoutFinding, ...]) -> list[tuple[str, str, str, str]]:
    return [(f.kind, f.problem.field, f.problem.value, f.problem.rule) for f in found]


def silent(*keys: str) -> dict[str, Any]:
    """A GPUNode that has everything but this."""
    status = deepcopy(GPU_NODE)
    for key in keys:
        if key == "numaNode":
            for gpu in status["gpus"]:
                del gpu[key]
        else:
            del status[key]
    return status


def test_labels_alone_give_an_assumed_layout() -> None:
    found = wiring(node(gpus=8, product=A100, count="8", machine="DGX-A100"))
    assert found.layout == assumed_layout(A100, 8, "DGX-A100")
    assert found.layout is not None and found.layout.assumed
    assert (found.origin, found.findings, found.inventory) == ("labels", (), None)


def test_the_machine_type_may_come_from_a_label_of_the_cloud() -> None:
    azure = node(gpus=8, product=A100, count="8", machine="Virtual-Machine")
    azure.metadata.labels["node.kubernetes.io/instance-type"] = "Standard_ND96amsr_A100_v4"
    assert wiring(azure).layout == assumed_layout(A100, 8, "Standard_ND96amsr_A100_v4")


@pytest.mark.parametrize(
    "labels",
    [{}, {"product": A100}, {"count": "8"}, {"product": "NVIDIA-Z9", "count": "8"}, {"product": A100, "count": "17"}],
)
def test_labels_that_do_not_suffice_are_no_wiring(labels: dict[str, str]) -> None:
    found = wiring(node(gpus=8, **labels))
    assert (found.layout, found.findings) == (None, ())


def test_a_count_that_is_no_number_is_a_finding() -> None:
    found = wiring(node(gpus=8, product=A100, count="eight"))
    assert found.layout is None
    assert problems(found.findings) == [
        ("Node", "metadata.labels[nvidia.com/gpu.count]", "eight", "must be a whole number: not used")
    ]


def test_gpus_that_do_not_match_the_description_are_only_counted() -> None:
    (finding,) = wiring(node(gpus=32, product=A100, count="8")).findings
    assert finding.problem.rule == "the labels of the node have 8 GPUs: they are only counted"


def test_more_gpus_than_wiring_is_worked_out_for_are_only_counted() -> None:
    listed = [{"index": i, "uuid": f"GPU-{i}"} for i in range(17)]
    (finding,) = wiring(node(gpus=17), gpu_node({"gpus": listed})).findings
    assert finding.problem.rule == "wiring is worked out for up to 16 GPUs of a node: they are only counted"


def test_slices_report_numa_nodes_and_pcie_roots_in_the_order_of_bus_ids() -> None:
    found = wiring(node(gpus=4), slice_of(SLICE))
    assert found.layout is not None
    assert found.layout.numa == (0, 0, 1, 1)
    assert found.layout.pcie[0] == (BOARD, UNKNOWN, UNKNOWN, UNKNOWN)
    assert found.layout.pcie[2] == (UNKNOWN, UNKNOWN, BOARD, PHB)
    assert (found.origin, found.layout.assumed, found.findings) == ("ResourceSlice", True, ())


def test_without_bus_ids_the_names_of_the_devices_give_the_order() -> None:
    devices = f"""
- {{name: gpu-10, attributes: {{type: gpu, uuid: GPU-x, {NUMA}: 1}}}}
- {{name: gpu-9, attributes: {{type: gpu, uuid: GPU-y, {NUMA}: 0, {BUS}: "0000:b3:00.0"}}}}
"""
    layout = wiring(node(gpus=2), slice_of(devices)).layout
    assert layout is not None
    assert layout.numa == (0, 1)


def test_what_slices_do_not_report_is_assumed_from_the_product() -> None:
    product = "NVIDIA H100 80GB HBM3"
    devices = "\n".join(
        f"- {{name: gpu-{i}, attributes: {{type: gpu, uuid: GPU-{i}, {NUMA}: {i // 4}, productName: {product}}}}}"
        for i in range(8)
    )
    layout = wiring(node(gpus=8), slice_of(devices)).layout
    assert layout is not None
    assert (layout.nvlinks[0][7], layout.nvlink_mbps, layout.assumed) == (18, 20_600, True)
    assert layout.numa == (0, 0, 0, 0, 1, 1, 1, 1)


def test_assumed_nics_are_not_taken_where_the_numa_nodes_are_others() -> None:
    def layout_of(numa: list[int]) -> Any:
        devices = "\n".join(
            f"- {{name: gpu-{i}, attributes: {{type: gpu, uuid: GPU-{i}, {NUMA}: {numa[i]}}}}}" for i in range(8)
        )
        return wiring(node(gpus=8, product=A100, count="8", machine="DGX-A100"), slice_of(devices)).layout

    assert layout_of([3, 3, 1, 1, 7, 7, 5, 5]).nics
    assert not layout_of([0, 0, 0, 0, 1, 1, 1, 1]).nics


def test_a_pool_counts_when_all_slices_of_its_newest_generation_are_there() -> None:
    first, second = "\n".join(SLICE.strip().splitlines()[:2]), "\n".join(SLICE.strip().splitlines()[2:])
    parts = [
        slice_of(first, "a", generation=2, resourceSliceCount=2),
        slice_of(second, "b", generation=2, resourceSliceCount=2),
    ]
    assert wiring(node(), parts[0]).layout is None
    assert problems(wiring(node(), parts[0]).findings) == [
        ("ResourceSlice", "spec.pool.resourceSliceCount", "2",
         "the pool has 1 of these slices in generation 2: not used until all are there")
    ]  # fmt: skip
    whole = wiring(node(), *parts)
    assert whole.layout is not None and whole.layout.gpus == 4
    old = slice_of(SLICE, "c", generation=1)
    assert wiring(node(), old, *parts) == whole
    assert wiring(node(), old, parts[1]).layout is None


def test_an_impossible_numa_node_is_a_finding_and_unknown() -> None:
    found = wiring(node(), slice_of(SLICE.replace(f"{NUMA}: 1,", f"{NUMA}: -1,")))
    assert found.layout is not None
    assert found.layout.numa == (0, 0, UNKNOWN, 1)
    ((kind, field, value, _),) = problems(found.findings)
    assert (kind, field, value) == ("ResourceSlice", f"spec.devices[0].attributes[{NUMA}]", "-1")


@pytest.mark.parametrize("spec", [{"driver": "dra.example.com"}, {"node_name": ""}])
def test_slices_of_other_drivers_describe_nothing(spec: dict[str, str]) -> None:
    other = slice_of(SLICE)
    assert wiring(node(), replace(other, spec=replace(other.spec, **spec))).layout is None


def test_what_the_gpu_node_does_not_report_is_taken_from_the_slices_by_uuid() -> None:
    shuffled = slice_of(SLICE.replace(BUS, "other"))  # Now in the order of the devices' names: c, d, a, b.
    layout = wiring(node(), gpu_node(silent("pcieLevels", "numaNode")), shuffled).layout
    assert layout is not None
    assert layout.numa == (0, 0, 1, 1)
    assert layout.pcie[2][3] == PHB
    assert (layout.nvlinks[0][1], layout.assumed) == (12, False)


def test_where_they_differ_the_gpu_node_counts_with_a_finding() -> None:
    status = deepcopy(GPU_NODE)
    status["pcieLevels"][2][3] = status["pcieLevels"][3][2] = "NODE"
    for gpu in status["gpus"][2:]:
        gpu["numaNode"] = 0
    found = wiring(node(), gpu_node(status), slice_of(SLICE))
    assert found.layout is not None
    assert (found.layout.numa, found.layout.pcie[2][3]) == ((0, 0, 0, 0), NODE)
    assert problems(found.findings) == [
        ("GPUNode", "status.gpus[2].numaNode", "0", "ResourceSlice has 1 (and so on for 1 more): GPUNode counts"),
        ("GPUNode", "status.pcieLevels[3][2]", "NODE",
         "ResourceSlice has these GPUs on one PCIe root: GPUNode counts"),
    ]  # fmt: skip


def test_slices_about_other_gpus_are_ignored_with_a_finding() -> None:
    alone = wiring(node(), gpu_node(silent("numaNode")))
    other = wiring(node(), gpu_node(silent("numaNode")), slice_of(SLICE.replace("GPU-a", "GPU-z")))
    assert other.layout == alone.layout
    assert problems(other.findings) == [
        ("ResourceSlice", "spec.devices[].attributes[uuid]", "GPU-z", "is no GPU of GPUNode: GPUNode counts")
    ]
    fewer = wiring(node(), gpu_node(silent("numaNode")), slice_of("\n".join(SLICE.strip().splitlines()[:3])))
    assert problems(fewer.findings) == [
        ("ResourceSlice", "spec.devices", "3", "are not the 4 GPUs of GPUNode: GPUNode counts")
    ]


def test_a_gpu_node_that_contradicts_itself_leaves_the_word_to_the_next() -> None:
    status = deepcopy(GPU_NODE)
    status["nvlinks"][0][1] = 1
    found = wiring(node(), gpu_node(status), slice_of(SLICE))
    assert (found.origin, len(found.findings)) == ("ResourceSlice", 1)


def test_labels_that_differ_are_findings() -> None:
    status = deepcopy(GPU_NODE) | {"clique": "fabric.7"}
    labelled = node(product="NVIDIA-H200", count="8", clique="fabric.8")
    assert problems(wiring(labelled, gpu_node(status)).findings) == [
        ("Node", "metadata.labels[nvidia.com/gpu.count]", "8", "GPUNode has 4: GPUNode counts"),
        ("Node", "metadata.labels[nvidia.com/gpu.product]", "NVIDIA-H200",
         "GPUNode has NVIDIA A100 80GB PCIe: GPUNode counts"),
        ("Node", "metadata.labels[nvidia.com/gpu.clique]", "fabric.8",
         "GPUNode has fabric.7: the label counts, as the fabric is read from labels"),
    ]  # fmt: skip


def test_gpus_that_are_all_in_one_zone_are_there() -> None:
    layout = wiring(node(), gpu_node(silent("numaNode")), zones(TWO_ZONES % (0, 4))).layout
    assert layout is not None
    assert layout.numa == (1, 1, 1, 1)
    spread = wiring(node(), gpu_node(silent("numaNode")), zones(TWO_ZONES % (2, 2))).layout
    assert spread is not None
    assert spread.numa == (UNKNOWN,) * 4


@pytest.mark.parametrize(("counts", "fits"), [((2, 2), True), ((1, 3), False), ((2, 3), False)])
def test_zones_with_other_counts_are_findings(counts: tuple[int, int], fits: bool) -> None:
    found = wiring(node(), gpu_node(GPU_NODE), zones(TWO_ZONES % counts))
    assert found.layout is not None
    assert found.layout.numa == (0, 0, 1, 1)
    reported = problems(found.findings)
    assert reported == [] if fits else [kind for kind, *_ in reported] == ["NodeResourceTopology"]


def test_zones_rule_out_what_was_assumed() -> None:
    labelled = node(gpus=8, product=A100, count="8", machine="p4d.24xlarge")
    usual = assumed_layout(A100, 8, "p4d.24xlarge")
    assert wiring(labelled, zones(TWO_ZONES % (4, 4))).layout == usual
    other = wiring(labelled, zones(TWO_ZONES % (6, 2))).layout
    one = wiring(labelled, zones(TWO_ZONES % (8, 0))).layout
    assert other is not None and one is not None and usual is not None
    assert (other.numa, other.nics, other.pcie[0][1]) == ((UNKNOWN,) * 8, (), UNKNOWN)
    assert (one.numa, one.nvlinks) == ((0,) * 8, usual.nvlinks)
    fewer = wiring(labelled, zones(TWO_ZONES % (2, 2)))
    assert fewer.layout == usual
    assert problems(fewer.findings)[0][2:] == ("4", "the labels of the node have 8: the labels count")


def test_an_inventory_of_zones_where_the_numa_nodes_of_the_gpus_are_known() -> None:
    reported = zones(TWO_ZONES % (2, 2), topologyManagerPolicy="single-numa-node", topologyManagerScope="pod")
    assert wiring(node(), gpu_node(silent("kubelet")), reported).inventory == Inventory(
        numa=(0, 1),
        topology_policy="single-numa-node",
        scope="pod",
        distances=((10, 21), (21, 10)),
        devices=(
            DevicePool("nvidia.com/gpu", tuple(ManagedDevice(str(i), (i // 2,)) for i in range(4)), prefers=True),
            DevicePool("rdma/hca", (ManagedDevice("0", (0,)), ManagedDevice("1", (0,)))),
        ),
    )
    assert wiring(node(gpus=8, product=A100, count="8"), zones(TWO_ZONES % (4, 4))).inventory is None


@pytest.mark.parametrize(
    ("old", "policy", "scope"),
    [("SingleNUMANodePodLevel", "single-numa-node", "pod"), ("Restricted", "restricted", "container"),
     ("BestEffortContainerLevel", "best-effort", "container"), ("None", "none", "container")],
)  # fmt: skip
def test_policies_in_the_older_words(old: str, policy: str, scope: str) -> None:
    reported = replace(zones(TWO_ZONES % (2, 2)), topology_policies=(old,))
    inventory = wiring(node(), gpu_node(silent("kubelet")), reported).inventory
    assert inventory is not None
    assert (inventory.topology_policy, inventory.scope) == (policy, scope)


@pytest.mark.parametrize(
    ("text", "attributes", "field", "value"),
    [
        ("[{name: numa-0, type: Node}]", {}, "zones[0].name", "numa-0"),
        ("[{name: node-64, type: Node}]", {}, "zones[0].name", "node-64"),
        ("[{name: node-0, type: Node, resources: [{name: nvidia.com/gpu, capacity: lots}]}]", {},
         "zones[node-0].resources[nvidia.com/gpu].capacity", "lots"),
        ("[{name: node-0, type: Node, resources: [{name: nvidia.com/gpu, capacity: 1500m}]}]", {},
         "zones[node-0].resources[nvidia.com/gpu].capacity", "1500m"),
        ("[{name: node-0, type: Node, resources: [{name: x.io/y, capacity: 999999999}]}]", {},
         "zones[node-0].resources[x.io/y].capacity", "999999999"),
    ],
)  # fmt: skip
def test_unreadable_zones_are_findings(text: str, attributes: dict[str, str], field: str, value: str) -> None:
    found = wiring(node(), zones(text, **attributes))
    assert [reported[:3] for reported in problems(found.findings)] == [("NodeResourceTopology", field, value)]


def test_unreadable_policies_are_findings() -> None:
    found = wiring(node(), gpu_node(silent("kubelet")), zones(TWO_ZONES % (2, 2), topologyManagerPolicy="strict"))
    assert [reported[:2] for reported in problems(found.findings)] == [
        ("NodeResourceTopology", "attributes[topologyManagerPolicy]")
    ]
    kept = silent()
    del kept["kubelet"]["topologyManagerPolicy"]
    found = wiring(node(), gpu_node(kept), zones(TWO_ZONES % (2, 2), topologyManagerPolicy="strict"))
    assert [reported[:2] for reported in problems(found.findings)] == [
        ("NodeResourceTopology", "attributes[topologyManagerPolicy]")
    ]
    assert found.inventory is not None and found.inventory.topology_policy is None
    many = zones("[]", topologyManagerOptionMaxAllowableNumaNodes="many")
    assert [reported[1:3] for reported in problems(wiring(node(), many).findings)] == [
        ("attributes[topologyManagerOptionMaxAllowableNumaNodes]", "many")
    ]
    found = wiring(node(), replace(zones("[]"), topology_policies=("SingleNUMA",)))
    assert [reported[:3] for reported in problems(found.findings)] == [
        ("NodeResourceTopology", "topologyPolicies[0]", "SingleNUMA")
    ]


def test_zones_complete_the_kubelet_s_record_and_contradictions_are_findings() -> None:
    reported = zones(TWO_ZONES % (2, 2), topologyManagerPolicy="best-effort", topologyManagerScope="container")
    status = deepcopy(GPU_NODE)
    for key in ("topologyManagerPolicy", "topologyManagerScope", "topologyManagerPolicyOptions"):
        del status["kubelet"][key]
    for numa in status["kubelet"]["numaNodes"]:
        del numa["distances"]
    filled = wiring(node(), gpu_node(status), reported).inventory
    assert filled is not None
    assert (filled.topology_policy, filled.scope, filled.distances) == (
        "best-effort", "container", ((10, 21), (21, 10)),
    )  # fmt: skip
    found = wiring(node(), gpu_node(GPU_NODE), reported)
    assert found.inventory is not None and found.inventory.topology_policy == "restricted"
    assert problems(found.findings) == [
        ("GPUNode", "status.kubelet.topologyManagerPolicy", "restricted",
         "NodeResourceTopology has best-effort: GPUNode counts"),
        ("GPUNode", "status.kubelet.topologyManagerScope", "pod",
         "NodeResourceTopology has container: GPUNode counts"),
    ]  # fmt: skip


REPORTED = [
    node(product="NVIDIA-A100-80GB-PCIe", count="4"),
    gpu_node(silent("pcieLevels")),
    slice_of(SLICE),
    zones(TWO_ZONES % (3, 1)),
]


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_the_order_in_which_objects_come_does_not_matter(order: tuple[int, ...]) -> None:
    feed, expected = feed_of(*(REPORTED[i] for i in order)), feed_of(*REPORTED)
    assert feed.node_records.wiring("n1") == expected.node_records.wiring("n1")
    assert feed.findings == expected.findings
    assert len(feed.findings["Node n1"]) == 1


def test_without_a_removed_object_the_next_one_counts_and_the_node_changes() -> None:
    feed = feed_of(*REPORTED[:3])
    (event,) = feed.gpu_nodes(deleted(REPORTED[1]))
    assert isinstance(event, ev.NodeChanged)
    wiring = feed.node_records.wiring("n1")
    assert (event.node.layout, wiring.origin) == (wiring.layout, "ResourceSlice")
    feed.node_records.resource_slices(deleted(REPORTED[2]))
    assert feed.node_records.wiring("n1").origin == "labels"
    assert feed.node_records.wiring("nobody").layout is None


def test_a_node_event_comes_only_when_its_record_changes() -> None:
    feed = feed_of(node(), gpu_node(GPU_NODE))
    later = deepcopy(GPU_NODE) | {"observedTime": "2026-01-31T13:00:00Z"}
    assert feed.gpu_nodes([Change("modified", gpu_node(later))]) == []
    assert feed.gpu_nodes([Change("modified", gpu_node(silent("nvlinks")))]) != []
    assert feed.gpu_nodes(added(gpu_node(GPU_NODE)))[0] != []


def test_a_finding_is_reported_once_per_change_and_when_it_is_settled() -> None:
    reported: list[tuple[str, int]] = []
    feed = Translator(on_findings=lambda about, findings: reported.append((about, len(findings))))
    feed.node_records.nodes(added(node(gpus=3)))
    feed.gpu_nodes(added(gpu_node(GPU_NODE)))
    feed.node_records.nodes([Change("modified", node(gpus=3)), Change("modified", node(gpus=3, count="4"))])
    assert reported == [("Node n1", 1)]
    feed.node_records.nodes([Change("modified", node(gpus=4))])
    assert reported == [("Node n1", 1), ("Node n1", 0)]
    assert feed.findings == {}


def test_findings_keep_no_node_out_of_use_and_go_with_it() -> None:
    feed = feed_of(node(gpus=3), gpu_node(GPU_NODE))
    assert feed.node_records._nodes["n1"][1].problem is None
    feed.node_records.nodes(deleted(node()))
    assert feed.findings == {}


def test_a_level_between_numa_nodes_is_known_from_them_alone() -> None:
    layout = wiring(node(), slice_of(SLICE)).layout
    assert layout is not None
    assert layout.pair_mbps(0, 2) == min(layout.pcie_mbps * 5 // 6, layout.socket_mbps)
    assert layout.pcie[0][2] == UNKNOWN != SYS
