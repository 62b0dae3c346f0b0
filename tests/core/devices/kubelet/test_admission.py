# SPDX-License-Identifier: Apache-2.0
"""A whole pod before a node's kubelet: which pods are let in, with what, and the reasons of the others."""

from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core.devices.kubelet.admission import AdmissionRoom, AdmissionVerdict, Kubelet
from dovetail.core.devices.kubelet.holdings import Holdings
from dovetail.core.devices.kubelet.inventory import Cpu, DevicePool, Gates, Inventory, ManagedDevice, MemoryPool
from dovetail.core.devices.kubelet.pods import Asked, ManagedContainer, ManagedKind, ManagedPod, amounts

GIB = 1 << 30
GPU = "nvidia.com/gpu"
CPUS = tuple(Cpu(i, i // 2 * 2, i // 8, i // 8, i // 8) for i in range(16))
GPUS = DevicePool(GPU, tuple(ManagedDevice(f"gpu{i}", (i // 4,)) for i in range(8)), True)
MEMORY = (MemoryPool(0, "memory", 33 * GIB, GIB), MemoryPool(1, "memory", 32 * GIB))
MACHINE = Inventory(
    numa=(0, 1),
    topology_policy="single-numa-node",
    cpu_policy="static",
    cpus=CPUS,
    reserved_cpus=frozenset({0, 1}),
    memory_policy="Static",
    memory=MEMORY,
    devices=(GPUS,),
)


def lowest(resource: str, available: int, must_include: int, size: int) -> int:
    chosen, left = must_include, available & ~must_include
    while chosen.bit_count() < size:
        chosen |= left & -left
        left &= left - 1
    return chosen


def asks(
    cpu_milli: int, gpus: int = 0, gib: int = 1, kind: ManagedKind = ManagedKind.APP, name: str = "main"
) -> ManagedContainer:
    both = {"cpu": cpu_milli, "memory": gib * GIB} | ({GPU: gpus} if gpus else {})
    return ManagedContainer(amounts(both), amounts(both), kind, name)


def only_gpus(count: int, kind: ManagedKind = ManagedKind.APP) -> ManagedContainer:
    return ManagedContainer(amounts({GPU: count}), amounts({GPU: count}), kind)


class Node:
    """Pods that come one after the other; a refused one leaves nothing behind."""

    def __init__(self, **other: Any) -> None:
        self.inventory = replace(MACHINE, **other)
        self.kubelet = Kubelet(self.inventory, lowest)
        self.holdings = Holdings.of_empty(self.inventory)

    def admit(
        self, *containers: ManagedContainer, uid: str = "uid", room: AdmissionRoom | None = None, **more: Any
    ) -> AdmissionVerdict:
        before = self.holdings.copy()
        verdict = self.kubelet.admit(self.holdings, uid, ManagedPod(containers, **more), room)
        assert self.holdings == before
        self.holdings = verdict.holdings
        return verdict

    def gpus(self, uid: str = "uid") -> list[int]:
        return [dict(held.devices).get(GPU, 0) for held in self.holdings.pods[uid].containers]


def test_a_pod_gets_cpus_memory_and_gpus_of_one_node() -> None:
    node = Node()
    verdict = node.admit(asks(4000, gpus=2, gib=8))
    assert (verdict.admitted, verdict.reason, verdict.certain) == (True, "", True)
    held = verdict.holdings.pods["uid"].containers[0]
    assert held.cpus == 0b0011_1100
    assert [(block.mask, block.size_bytes) for block in held.memory or ()] == [(1, 8 * GIB)]
    assert held.devices == ((GPU, 0b11),)
    assert verdict.holdings.devices == {GPU: 0b11}


def test_a_pod_that_fits_no_node_as_a_whole_is_refused_by_its_topology_and_leaves_nothing() -> None:
    node = Node()
    empty = node.holdings
    verdict = node.admit(asks(8000, gpus=1), asks(1000, gpus=5))
    assert verdict.admitted is False
    assert verdict.reason == "TopologyAffinityError"
    assert verdict.message == "Resources cannot be allocated with Topology locality"
    assert verdict.holdings == empty


def test_containers_may_lie_apart_in_scope_container_but_not_in_scope_pod() -> None:
    pod = asks(6000, gpus=3), asks(6000, gpus=3)
    apart = Node()
    assert apart.admit(*pod).admitted
    assert apart.gpus() == [0b111, 0b1110000]
    assert Node(scope="pod").admit(*pod).reason == "TopologyAffinityError"
    assert Node(scope="pod", topology_policy="restricted", memory_policy="None").admit(*pod).admitted


def test_a_pod_over_several_nodes_is_refused_where_one_of_its_resources_would_do_with_fewer() -> None:
    node = Node(topology_policy="restricted")
    assert node.admit(asks(10_000, gpus=6, gib=8)).reason == "TopologyAffinityError"
    assert node.admit(asks(10_000, gpus=6, gib=40)).admitted


def test_a_restricted_node_refuses_what_would_only_have_fitted_when_it_was_empty() -> None:
    node = Node(topology_policy="restricted")
    for uid in ("a", "b"):
        assert node.admit(asks(1000, gpus=3), uid=uid).admitted
    assert node.admit(asks(1000, gpus=2)).reason == "TopologyAffinityError"
    best = Node(topology_policy="best-effort")
    for uid in ("a", "b"):
        assert best.admit(asks(1000, gpus=3), uid=uid).admitted
    assert best.admit(asks(1000, gpus=2)).admitted
    assert best.gpus() == [0b10001000]


def test_gpus_of_a_pod_that_is_not_guaranteed_are_aligned_all_the_same() -> None:
    node = Node()
    assert node.admit(only_gpus(3), uid="a").admitted
    assert node.admit(only_gpus(3), uid="b").admitted
    assert node.admit(only_gpus(2), uid="c").reason == "TopologyAffinityError"
    assert node.holdings.shared_cpus == (1 << 16) - 1


def test_an_init_container_decides_the_node_of_the_main_container() -> None:
    node = Node()
    assert node.admit(only_gpus(1), uid="before").admitted
    verdict = node.admit(asks(1000, gpus=4, kind=ManagedKind.INIT), asks(1000, gpus=1))
    assert verdict.admitted
    assert node.gpus()[0] == 0b11110000
    assert node.gpus()[1] & 0b11110000


def test_no_policy_asks_for_no_hints() -> None:
    node = Node(topology_policy="none")
    assert node.admit(asks(2000, gpus=5)).admitted
    assert node.gpus() == [0b11111]


def test_a_failed_allocation_is_reported_in_the_managers_words() -> None:
    options = frozenset({"full-pcpus-only"})
    verdict = Node(cpu_options=options).admit(asks(3000, gpus=1))
    assert verdict.reason == "SMTAlignmentError"
    verdict = Node(topology_policy="best-effort").admit(asks(1000, gpus=9))
    assert verdict.reason == "UnexpectedAdmissionError"
    assert verdict.message == (
        "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
        "Requested: 9, Available: 8, which is unexpected"
    )
    assert verdict.holdings.devices == {}


def test_what_a_pod_held_is_free_again_when_it_ends() -> None:
    node = Node()
    empty = node.holdings
    assert node.admit(asks(2000, gpus=2, kind=ManagedKind.INIT), asks(1000, gpus=1)).admitted
    assert node.kubelet.release(node.holdings, "uid") == empty


def test_a_node_that_cannot_hold_the_requests_is_out_of_them_after_its_topology_was_asked() -> None:
    room = AdmissionRoom({"cpu": 14_000, "memory": 64 * GIB, "pods": 2, GPU: 8}, {"cpu": 12_000, "pods": 1})
    verdict = Node().admit(asks(4000), room=room)
    assert verdict.reason == "OutOfcpu"
    assert verdict.message == "Node didn't have enough resource: cpu, requested: 4000, used: 12000, capacity: 14000"
    assert verdict.holdings == Holdings.of_empty(MACHINE)
    assert Node().admit(asks(2000), room=room).admitted
    assert Node().admit(asks(9000), room=room).reason == "TopologyAffinityError"
    full = AdmissionRoom({"pods": 1}, {"pods": 1})
    assert Node().admit(ManagedContainer(), room=full).reason == "OutOfpods"


def test_extended_resources_that_the_node_does_not_report_are_ignored() -> None:
    other = ManagedContainer(amounts({"vendor.io/other": 1}), amounts({"vendor.io/other": 1}))
    assert Node().admit(other, room=AdmissionRoom({"pods": 9}, {})).admitted
    assert (
        Node().admit(other, room=AdmissionRoom({"pods": 9, "vendor.io/other": 0}, {})).reason == "OutOfvendor.io/other"
    )
    huge = ManagedContainer(amounts({"hugepages-2Mi": 1 << 21}), amounts({"hugepages-2Mi": 1 << 21}))
    assert Node().admit(huge, room=AdmissionRoom({"pods": 9}, {})).reason == "OutOfhugepages-2Mi"


def test_allocated_devices_count_even_if_the_node_no_longer_reports_them() -> None:
    assert Node().admit(only_gpus(2), room=AdmissionRoom({"pods": 9, GPU: 0}, {})).admitted
    node = Node()
    assert node.admit(only_gpus(2), uid="a").admitted
    reported = AdmissionRoom({"pods": 9, GPU: 0}, {"pods": 1, GPU: 2})
    assert node.admit(only_gpus(2), uid="b", room=reported).admitted


@pytest.mark.parametrize(
    ("unknown", "guaranteed", "burstable", "plain"),
    [
        ({"topology_policy": None}, None, None, True),
        ({"cpu_policy": None}, None, True, True),
        ({"memory_policy": None}, None, True, True),
    ],
)
def test_a_policy_that_is_not_known_is_reported_where_it_could_matter(
    unknown: dict[str, Any], guaranteed: bool | None, burstable: bool | None, plain: bool
) -> None:
    verdict = Node(**unknown).admit(asks(1000))
    assert verdict.admitted is guaranteed
    assert "policy is not known" in verdict.message
    assert verdict.holdings.pods == {}
    assert Node(**unknown).admit(only_gpus(1)).admitted is burstable
    assert Node(**unknown).admit(ManagedContainer()).admitted is plain


def whole(cpu_milli: int, gib: int) -> Asked:
    both = amounts({"cpu": cpu_milli, "memory": gib * GIB})
    return Asked(both, both)


def test_pods_with_resources_as_a_whole_are_not_pinned_unless_the_gate_is_on() -> None:
    node = Node()
    assert node.admit(asks(2000), whole=whole(4000, 4)).admitted
    assert node.holdings.pods["uid"].containers[0].cpus is None
    node = Node(gates=Gates(pod_level_resource_managers=True))
    assert node.admit(asks(2000), whole=whole(4000, 4)).admitted
    assert node.holdings.pods["uid"].containers[0].cpus == 0b1100


def test_with_the_gate_a_pod_gets_its_cpus_as_a_whole_in_scope_pod() -> None:
    node = Node(gates=Gates(pod_level_resource_managers=True), scope="pod")
    assert node.admit(asks(2000), ManagedContainer(name="side"), whole=whole(4000, 4)).admitted
    held = node.holdings.pods["uid"]
    assert held.cpus is not None and held.cpus.bit_count() == 4
    assert held.cpus == (held.containers[0].cpus or 0) | (held.containers[1].cpus or 0)
    refused = node.admit(asks(1000), whole=whole(9000, 4), uid="wide")
    assert refused.reason == "TopologyAffinityError"
    assert refused.message == (
        "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
    )
    refused = Node(gates=Gates(pod_level_resource_managers=True)).admit(asks(9000), whole=whole(9000, 4))
    assert refused.message == (
        "Pod Scope pod with pod-level resources failed admission with a container-level topology manager"
    )


def test_with_the_gate_devices_come_only_when_containers_start_and_so_are_not_certain() -> None:
    node = Node(gates=Gates(pod_level_resource_managers=True), scope="pod")
    verdict = node.admit(asks(2000, gpus=2), whole=whole(4000, 4))
    assert verdict.admitted
    assert not verdict.certain
    assert node.gpus() == [0b11]


def test_a_pod_that_the_kubelet_finds_again_keeps_what_it_holds() -> None:
    node = Node()
    pod = asks(2000, gpus=3)
    assert node.admit(pod).admitted
    before = node.holdings
    assert node.admit(pod).admitted
    assert node.holdings == before
    assert node.admit(asks(2000, gpus=4)).reason == "TopologyAffinityError"
    assert node.holdings.pods == {}
