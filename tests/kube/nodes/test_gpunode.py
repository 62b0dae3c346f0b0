# SPDX-License-Identifier: Apache-2.0
"""A GPUNode becomes a layout and an inventory; an impossible value is named with its field."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from dovetail.core.devices.kubelet.inventory import Cpu, DevicePool, Gates, ManagedDevice, MemoryPool
from dovetail.core.devices.layout import BOARD, PIX, PXB, SYS, UNKNOWN, Layout, Nic
from dovetail.kube.objects.topology import GPUNode
from tests.kube.nodes.inside import GPU_NODE, feed_of, gpu_node, node, wiring
from tests.kube.yaml_objects import added

Change = Callable[[dict[str, Any]], object]


def changed(change: Change) -> dict[str, Any]:
    status = deepcopy(GPU_NODE)
    change(status)
    return status


def test_the_whole_wiring() -> None:
    found = wiring(node(gpus=4), gpu_node(GPU_NODE))
    assert found.layout == Layout(
        numa=(0, 0, 1, 1),
        pcie=((BOARD, PIX, SYS, SYS), (PIX, BOARD, SYS, SYS), (SYS, SYS, BOARD, PXB), (SYS, SYS, PXB, BOARD)),
        nvlinks=((0, 12, 0, 0), (12, 0, 0, 0), (0, 0, 0, 12), (0, 0, 12, 0)),
        nics=(Nic((PXB, PXB, SYS, SYS), 0, 25_000, True),),
        nvlink_mbps=20_000,
        pcie_mbps=24_000,
        socket_mbps=9_000,
        assumed=False,
    )
    assert (found.origin, found.findings) == ("GPUNode", ())


def test_reported_rates_count_before_those_of_the_product() -> None:
    found = wiring(node(gpus=4), gpu_node(changed(lambda s: s["rates"].update(nvlinkMBps=17_000))))
    assert found.layout is not None
    assert (found.layout.nvlink_mbps, found.layout.pcie_mbps) == (17_000, 24_000)


def test_what_is_left_out_is_not_known() -> None:
    def leave_out(status: dict[str, Any]) -> None:
        for key in ("pcieLevels", "nics", "rates"):
            del status[key]
        for gpu in status["gpus"]:
            del gpu["numaNode"], gpu["product"]

    layout = wiring(node(gpus=4), gpu_node(changed(leave_out))).layout
    assert layout is not None
    assert layout.numa == (UNKNOWN,) * 4
    assert layout.pcie[0] == (BOARD, UNKNOWN, UNKNOWN, UNKNOWN)
    assert (layout.nics, layout.assumed) == ((), False)


def test_nodes_of_one_kind_share_one_layout_and_one_inventory() -> None:
    other = changed(lambda s: [gpu.update(uuid=f"GPU-other-{gpu['index']}") for gpu in s["gpus"]])
    other["kubelet"]["devices"][0]["devices"] = [{"id": f"GPU-other-{i}", "numaNodes": [i // 2]} for i in range(4)]
    one, two = wiring(node(gpus=4), gpu_node(GPU_NODE)), wiring(node(gpus=4), gpu_node(other))
    assert one.layout is two.layout
    assert one.inventory is two.inventory
    assert one.inventory is not None


@pytest.mark.parametrize(
    ("change", "field", "value", "rule"),
    [
        (lambda s: s["pcieLevels"][1].__setitem__(0, "SYS"), "pcieLevels[0][1]", "", "is 1 one way and 5 the other"),
        (lambda s: s["pcieLevels"][2].__setitem__(3, "PXX"), "pcieLevels[2][3]", "PXX", "nearest valid value: PXB"),
        (lambda s: s["pcieLevels"][2].__setitem__(3, "X"), "pcieLevels[2][3]", "X", "is for a GPU and itself"),
        (lambda s: s["pcieLevels"][1].__setitem__(1, "PIX"), "pcieLevels[1][1]", "PIX", "must be X"),
        (lambda s: s["pcieLevels"].pop(), "pcieLevels", "", "a row and a column for each of 4 GPUs"),
        (lambda s: s["nvlinks"][0].__setitem__(1, 11), "nvlinks[0][1]", "", "is 11 one way and 12 the other"),
        (lambda s: s["nvlinks"][0].__setitem__(0, 1), "pcieLevels[0][0]", "", "no link to itself"),
        (lambda s: s["nvlinks"][3].append(0), "nvlinks", "", "a row and a column for each of 4 GPUs"),
        (lambda s: s["nvlinks"][0].__setitem__(3, 37), "nvlinks[0][3]", "", "37 is not from 0 to 36"),
        (lambda s: s["gpus"][1].update(index=3), "gpus[1].index", "3", "must be 1"),
        (lambda s: s["gpus"][2].update(numaNode=64), "gpus[2].numaNode", "", "64 is not from -1 to 63"),
        (lambda s: s["nics"][0]["levels"].pop(), "nics[0].levels", "", "names 3 GPUs of 4"),
        (lambda s: s["nics"][0]["levels"].__setitem__(1, "pix"), "nics[0].levels[1]", "pix", "must be one of"),
        (lambda s: s["nics"][0].update(numaNode=99), "nics[0].numaNode", "", "99 is not from -1 to 63"),
        (lambda s: s["rates"].update(socketMBps=0), "rates.socketMBps", "", "0 is not from 1 to 200000"),
        (lambda s: s.update(gpus=s["gpus"] * 20), "gpus", "80", "more than 64 GPUs"),
    ],
)  # fmt: skip
def test_a_contradiction_is_named_and_the_wiring_not_used(change: Change, field: str, value: str, rule: str) -> None:
    found = wiring(node(gpus=4), gpu_node(changed(change)))
    assert found.layout is None
    (finding,) = found.findings
    assert (finding.kind, finding.name) == ("GPUNode", "n1")
    assert (finding.problem.field, finding.problem.value) == (f"status.{field}", value)
    assert rule in finding.problem.rule


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda s: s.update(pcieLevels="X"), r"\$\.status\.pcieLevels"),
        (lambda s: s["nvlinks"][1].__setitem__(0, "12"), r"\$\.status\.nvlinks\[1\]\[0\]"),
        (lambda s: s["gpus"][0].update(numaNode="0"), r"\$\.status\.gpus\[0\]\.numaNode"),
        (lambda s: s["kubelet"].update(cpus={}), r"\$\.status\.kubelet\.cpus"),
    ],
)
def test_a_wrong_type_is_named_with_its_path(change: Change, path: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=path):
        msgspec.convert({"metadata": {"name": "n1"}, "status": changed(change)}, GPUNode)


def test_a_broken_gpu_and_a_card_in_mig_mode_are_out() -> None:
    status = changed(lambda s: (s["gpus"][3].update(healthy=False), s["gpus"][0].update(mig=[])))
    for offered in (2, 3, 4):
        found = wiring(node(gpus=offered), gpu_node(status))
        assert found.findings == ()
        assert found.parts.gpus_out == 0b1001


def test_fewer_gpus_than_work_are_only_counted_and_the_broken_one_is_named() -> None:
    status = changed(lambda s: s["gpus"][3].update(healthy=False))
    (finding,) = wiring(node(gpus=2), gpu_node(status)).findings
    assert (finding.kind, finding.problem.field, finding.problem.value) == (
        "Node", "status.allocatable[nvidia.com/gpu]", "2",
    )  # fmt: skip
    assert finding.problem.rule == "GPUNode has 4 GPUs (not healthy: 3): they are only counted"


def test_a_gpu_that_is_well_again_stays_out_until_the_node_offers_it() -> None:
    unhealthy = changed(lambda s: s["gpus"][3].update(healthy=False))
    feed = feed_of(node(gpus=3), gpu_node(unhealthy))
    assert feed.node_records.wiring("n1").parts.gpus_out == 0b1000
    feed.gpu_nodes(added(gpu_node(GPU_NODE)))
    assert (feed.node_records.wiring("n1").parts.gpus_out, feed.node_records.wiring("n1").findings) == (0b1000, ())
    feed.node_records.nodes(added(node(gpus=4)))
    assert (feed.node_records.wiring("n1").parts.gpus_out, feed.node_records.wiring("n1").findings) == (0, ())
    # It does not stand for a GPU that is missing later.
    feed.node_records.nodes(added(node(gpus=3)))
    assert feed.node_records.wiring("n1").parts.gpus_out == 0
    assert feed.node_records.wiring("n1").findings != ()


def test_a_gpu_that_is_healthy_again_stays_out_while_the_kubelet_restarts() -> None:
    """At first it offers none, then the plugin's last list, which may be older than the GPU's recovery."""
    feed = feed_of(node(gpus=3), gpu_node(changed(lambda s: s["gpus"][3].update(healthy=False))))
    assert feed.node_records.wiring("n1").parts.gpus_out == 0b1000
    feed.gpu_nodes(added(gpu_node(GPU_NODE)))
    for offered in (0, 3):
        feed.node_records.nodes(added(node(gpus=offered)))
        feed.node_records.wiring("n1")
    assert (feed.node_records.wiring("n1").parts.gpus_out, feed.node_records.wiring("n1").findings) == (0b1000, ())
    feed.node_records.nodes(added(node(gpus=4)))
    assert feed.node_records.wiring("n1").parts.gpus_out == 0


def test_a_node_that_offers_no_gpus_yet_is_not_complained_about() -> None:
    assert wiring(node(gpus=0), gpu_node(GPU_NODE)).findings == ()


def test_what_the_kubelet_manages() -> None:
    inventory = wiring(node(gpus=4), gpu_node(GPU_NODE)).inventory
    assert inventory is not None
    assert (inventory.numa, inventory.distances) == ((0, 1), ((10, 21), (21, 10)))
    assert (inventory.topology_policy, inventory.scope, inventory.minor) == ("restricted", "pod", 36)
    assert (inventory.prefer_closest_numa, inventory.max_allowable_numa) == (True, 12)
    assert (inventory.cpu_policy, inventory.cpu_options) == ("static", {"full-pcpus-only"})
    assert inventory.cpus == (
        Cpu(0, 0, 0, 0, 0), Cpu(4, 0, 0, 0, 0), Cpu(1, 1, 0, 0, 0), Cpu(5, 1, 0, 0, 0),
        Cpu(2, 2, 1, 1, 1), Cpu(6, 2, 1, 1, 1), Cpu(3, 3, 1, 1, 1), Cpu(7, 3, 1, 1, 1),
    )  # fmt: skip
    assert inventory.reserved_cpus == {0, 4}
    assert inventory.memory_policy == "Static"
    assert inventory.memory[:2] == (MemoryPool(0, "memory", 64 << 30, 1 << 30), MemoryPool(0, "hugepages-2Mi", 2 << 20))
    assert inventory.devices[0] == DevicePool(
        "nvidia.com/gpu",
        (ManagedDevice("0", (0,)), ManagedDevice("1", (0,)), ManagedDevice("2", (1,)), ManagedDevice("3", (1,))),
        prefers=True,
    )
    assert inventory.devices[1] == DevicePool(
        "rdma/hca", (ManagedDevice("0", None), ManagedDevice("1", (), healthy=False))
    )
    assert inventory.gates == Gates(True, True, False)


def test_gpus_of_the_plugin_take_the_order_of_the_layout() -> None:
    status = changed(lambda s: s["kubelet"]["devices"][0]["devices"].reverse())
    inventory = wiring(node(gpus=4), gpu_node(status)).inventory
    assert inventory is not None
    assert [device.numa for device in inventory.devices[0].devices] == [(0,), (0,), (1,), (1,)]


def test_a_policy_that_is_left_out_is_not_known_which_is_not_none() -> None:
    def leave_out(status: dict[str, Any]) -> None:
        for key in ("topologyManagerPolicy", "cpuManagerPolicy", "cpuManagerPolicyOptions", "memoryManagerPolicy"):
            del status["kubelet"][key]

    inventory = wiring(node(gpus=4), gpu_node(changed(leave_out))).inventory
    assert inventory is not None
    assert (inventory.topology_policy, inventory.cpu_policy, inventory.memory_policy) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        (lambda k: k.update(version="1"), "version", "must be like v1.37.1"),
        (lambda k: k.update(version="v1.99.0"), "version", "is not from v1.27 to v1.37"),
        (lambda k: k.update(topologyManagerPolicy="strict"), "topologyManagerPolicy", "did you mean 'restricted'"),
        (lambda k: k.update(topologyManagerScope="node"), "topologyManagerScope", "is not known"),
        (lambda k: k["topologyManagerPolicyOptions"].update(fast="true"), "topologyManagerPolicyOptions[fast]",
         "is not known; nearest"),
        (lambda k: k["topologyManagerPolicyOptions"].update({"prefer-closest-numa-nodes": "yes"}),
         "topologyManagerPolicyOptions[prefer-closest-numa-nodes]", "'yes' is not true or false"),
        (lambda k: k["topologyManagerPolicyOptions"].update({"max-allowable-numa-nodes": "many"}),
         "topologyManagerPolicyOptions[max-allowable-numa-nodes]", "is not a whole number"),
        (lambda k: k["topologyManagerPolicyOptions"].update({"max-allowable-numa-nodes": "4"}),
         "topologyManagerPolicyOptions[max-allowable-numa-nodes]", "the kubelet's least"),
        (lambda k: k["cpuManagerPolicyOptions"].update({"full-pcpus": "true"}), "cpuManagerPolicyOptions",
         "did you mean 'full-pcpus-only'"),
        (lambda k: k["cpuManagerPolicyOptions"].update({"full-pcpus-only": "on"}),
         "cpuManagerPolicyOptions[full-pcpus-only]", "'on' is not true or false"),
        (lambda k: k.update(memoryManagerPolicy="static"), "memoryManagerPolicy", "did you mean 'Static'"),
        (lambda k: k.update(reservedSystemCPUs="0-"), "reservedSystemCPUs", "is no list of CPUs"),
        (lambda k: k.update(reservedSystemCPUs="0-99999"), "reservedSystemCPUs", "is no list of CPUs"),
        (lambda k: k.update(reservedSystemCPUs="63"), "reservedSystemCPUs", "the machine has no CPU 63"),
        (lambda k: k["numaNodes"].reverse(), "numaNodes", "must be in ascending order"),
        (lambda k: k["numaNodes"][1].pop("distances"), "numaNodes", "has 1 rows for 2 NUMA nodes"),
        (lambda k: k["numaNodes"][1]["distances"].pop(), "numaNodes[1].distances", "ends before NUMA id 1"),
        (lambda k: k["numaNodes"][1]["memory"][0].update(reservedBytes=1 << 50),
         "numaNodes[1].memory[0].reservedBytes", "is not from 0 to the total"),
        (lambda k: k["numaNodes"][0]["memory"][1].update(type="hugepage"), "numaNodes[0].memory[1].type",
         "neither memory nor hugepages"),
        (lambda k: k["cpus"][1].update(numaNode=5), "cpus[1].cores[0].numaNode", "NUMA node 5 is not among"),
        (lambda k: k["cpus"][1]["cores"].append("0"), "cpus[1].cores[2]", "0 is negative or listed twice"),
        (lambda k: k["cpus"][0]["cores"].append("8-x"), "cpus[0].cores[2]", "is no list of CPUs"),
        (lambda k: k["devices"].append(k["devices"][0]), "devices[2].resource", "is listed twice"),
        (lambda k: k["devices"][0]["devices"][2].update(numaNodes=[7]), "devices[0].devices[2].numaNodes",
         "NUMA node 7 is not among"),
        (lambda k: k["featureGates"].update(PodLevelResources=False), "featureGates", "without pod_level_resources"),
    ],
)  # fmt: skip
def test_a_kubelet_that_cannot_be_is_named_and_leaves_the_wiring_in_use(change: Change, field: str, rule: str) -> None:
    found = wiring(node(gpus=4), gpu_node(changed(lambda status: change(status["kubelet"]))))
    assert found.inventory is None
    assert found.layout is not None
    (finding,) = found.findings
    assert finding.problem.field == f"status.kubelet.{field}"
    assert rule in finding.problem.rule


def test_devices_that_the_kubelet_does_not_list_keep_their_numbers() -> None:
    def change(status: dict[str, Any]) -> None:
        status["gpus"][1].update(healthy=False)
        status["gpus"][2].update(mig=[])
        del status["kubelet"]["devices"][0]["devices"][1:3]

    inventory = wiring(node(gpus=2), gpu_node(changed(change))).inventory
    assert inventory is not None
    (pool,) = (pool for pool in inventory.devices if pool.resource == "nvidia.com/gpu")
    assert [(device.numa, device.healthy) for device in pool.devices] == [
        ((0,), True), ((0,), False), (None, False), ((1,), True),
    ]  # fmt: skip
