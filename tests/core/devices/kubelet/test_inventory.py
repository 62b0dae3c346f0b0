# SPDX-License-Identifier: Apache-2.0
"""An inventory that a kubelet would not start with, or that no machine has, names the field that is wrong."""

from typing import Any

import pytest

from dovetail.core.devices.kubelet.inventory import (
    Cpu,
    DevicePool,
    Gates,
    Inventory,
    InventoryError,
    ManagedDevice,
    MemoryPool,
)

MIB = 1 << 20
CPUS = tuple(Cpu(i, i // 2 * 2, i // 4, i // 4, i // 4) for i in range(8))
MEMORY = (MemoryPool(0, "memory", 64 * MIB, MIB), MemoryPool(1, "memory", 64 * MIB))
WHOLE: dict[str, Any] = {
    "numa": (0, 1),
    "topology_policy": "restricted",
    "cpu_policy": "static",
    "cpus": CPUS,
    "reserved_cpus": frozenset({0}),
    "memory_policy": "Static",
    "memory": MEMORY,
    "devices": (DevicePool("nvidia.com/gpu", (ManagedDevice("a", (0,)), ManagedDevice("b", (1,)))),),
}


def test_equal_machines_share_one_inventory() -> None:
    assert Inventory(**WHOLE) == Inventory(**WHOLE)
    assert len({Inventory(**WHOLE), Inventory(**WHOLE), Inventory(**WHOLE | {"scope": "pod"})}) == 2


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        ({"topology_policy": "single-numa"}, "topology_policy", "did you mean 'single-numa-node'?"),
        ({"scope": "pods"}, "scope", "did you mean 'pod'?"),
        ({"cpu_policy": "Static"}, "cpu_policy", "did you mean 'static'?"),
        ({"memory_policy": "static"}, "memory_policy", "did you mean 'Static'?"),
        ({"cpu_options": frozenset({"full-pcpu-only"})}, "cpu_options", "did you mean 'full-pcpus-only'?"),
        (
            {"cpu_options": frozenset({"full-pcpus-only", "distribute-cpus-across-cores"})},
            "cpu_options",
            "cannot be used at the same time",
        ),
        (
            {"cpu_options": frozenset({"distribute-cpus-across-numa", "prefer-align-cpus-by-uncorecache"})},
            "cpu_options",
            "cannot be used at the same time",
        ),
        ({"cpu_options": frozenset({"strict-cpu-reservation"}), "minor": 31}, "cpu_options", "came with v1.32"),
        ({"cpu_options": frozenset({"full-pcpus-only"}), "cpu_policy": "none"}, "cpu_options", "has no options"),
        (
            {"cpu_options": frozenset({"align-by-socket"}), "topology_policy": "single-numa-node"},
            "cpu_options",
            "excludes the topology policy",
        ),
        (
            {"cpu_options": frozenset({"align-by-socket"}), "cpus": tuple(Cpu(i, i, i, i // 4, i) for i in range(8))},
            "cpu_options",
            "more sockets than NUMA nodes",
        ),
        ({"minor": 26}, "minor", "v1.26 is not from"),
        ({"gates": Gates(False, True)}, "gates.pod_level_resource_managers", "depends"),
        ({"gates": Gates(True, True), "minor": 35}, "gates.pod_level_resource_managers", "lacks it"),
        ({"numa": ()}, "numa", "is empty"),
        ({"numa": (1, 0)}, "numa", "ascending"),
        ({"numa": (0, 1, 64)}, "numa", "64 is not from 0 to 63"),
        ({"numa": tuple(range(9))}, "numa", "would not start"),
        ({"max_allowable_numa": 4}, "max_allowable_numa", "less than 8"),
        ({"distances": ((10, 20),)}, "distances", "1 rows for 2"),
        ({"prefer_closest_numa": True}, "distances", "are not known"),
        ({"prefer_closest_numa": True, "distances": ((10, 20), (20,))}, "distances[1]", "ends before NUMA id 1"),
        ({"cpus": (*CPUS, Cpu(7, 6, 1, 1, 1))}, "cpus[8].id", "listed twice"),
        ({"cpus": (*CPUS, Cpu(8, 8, 1, 2, 1))}, "cpus[8].numa", "NUMA node 2 is not among [0, 1]"),
        ({"cpus": (*CPUS, Cpu(8, 6, 0, 1, 1))}, "cpus[8].core", "more than one socket"),
        ({"cpus": (*CPUS, Cpu(8, 9, 1, 1, 1))}, "cpus[8].core", "not the lowest"),
        ({"cpus": ()}, "reserved_cpus", "the machine has no CPU 0"),
        ({"cpus": (), "reserved_cpus": frozenset()}, "cpus", "are not known"),
        ({"reserved_cpus": frozenset()}, "reserved_cpus", "is empty"),
        ({"reserved_cpus": frozenset({0, 8})}, "reserved_cpus", "no CPU 8"),
        ({"memory": (MemoryPool(2, "memory", 1),)}, "memory[0].numa", "NUMA node 2"),
        ({"memory": (MemoryPool(0, "ram", 1),)}, "memory[0].type", "neither memory nor hugepages"),
        ({"memory": (*MEMORY, MEMORY[0])}, "memory[2]", "has memory twice"),
        ({"memory": (MemoryPool(0, "memory", 1, 2), MEMORY[1])}, "memory[0].reserved_bytes", "not from 0"),
        ({"memory": (*MEMORY, MemoryPool(0, "hugepages-2Mi", 64 * MIB))}, "memory[0].total_bytes", "is less than"),
        ({"memory": MEMORY[:1]}, "memory", "NUMA node 1 has no memory"),
        ({"memory": (MemoryPool(0, "memory", 9), MEMORY[1])}, "memory", "none is reserved"),
        ({"devices": WHOLE["devices"] * 2}, "devices[1].resource", "listed twice"),
        (
            {"devices": (DevicePool("x", (ManagedDevice("a"), ManagedDevice("a"))),)},
            "devices[0].devices[1].id",
            "listed twice",
        ),
        ({"devices": (DevicePool("x", (ManagedDevice("a", (0, 2)),)),)}, "devices[0].devices[0].numa", "NUMA node 2"),
    ],
)
def test_what_cannot_be_is_refused_by_field(wrong: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InventoryError) as caught:
        Inventory(**WHOLE | wrong)
    assert caught.value.field == field
    assert message in str(caught.value)


def test_more_numa_nodes_are_fine_where_the_kubelet_allows_them_or_does_not_look() -> None:
    many = tuple(range(12))
    assert Inventory(numa=many, topology_policy="restricted", max_allowable_numa=12)
    assert Inventory(numa=many, topology_policy="none")


def test_sets_of_nodes_that_nobody_can_go_through_are_refused() -> None:
    many = tuple(range(36))
    wide = {"numa": many, "topology_policy": "restricted", "max_allowable_numa": 64}
    everywhere = DevicePool("x", tuple(ManagedDevice(str(i), (i,)) for i in many))
    with pytest.raises(InventoryError, match="all sets of 36"):
        Inventory(**wide, devices=(everywhere,))
    few = DevicePool("x", (ManagedDevice("a", (0,)), ManagedDevice("b", (1,))))
    assert Inventory(**wide, devices=(few,))
    with pytest.raises(InventoryError, match="all sets of 36"):
        Inventory(**wide, devices=(few,), minor=36)
    with pytest.raises(InventoryError, match="Memory Manager"):
        Inventory(**wide, memory_policy="Static", memory=tuple(MemoryPool(i, "memory", MIB, 1) for i in many))


def test_gates_are_those_of_the_version_where_nobody_sets_them() -> None:
    assert Gates.of_version(33) == Gates(False, False, False)
    assert Gates.of_version(36) == Gates(True, False, False)
    assert Gates.of_version(37) == Gates()
