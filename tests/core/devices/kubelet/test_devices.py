# SPDX-License-Identifier: Apache-2.0
"""Hints for devices, and which of them a container gets."""

from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.core.devices.kubelet.devices import DeviceManager, Preference
from dovetail.core.devices.kubelet.hints import Hint
from dovetail.core.devices.kubelet.holdings import AllocationRefused, Arrival, HeldResources, Holdings
from dovetail.core.devices.kubelet.inventory import DevicePool, Inventory, ManagedDevice
from dovetail.core.devices.kubelet.pods import ManagedContainer, ManagedKind, ManagedPod, amounts

GPU = "nvidia.com/gpu"
TWO_AND_TWO = ((0,), (0,), (1,), (1,))


def machine(*numa: tuple[int, ...] | None, unhealthy: Sequence[int] = (), nodes: int = 2, **more: Any) -> Inventory:
    devices = tuple(ManagedDevice(f"gpu{i}", where, i not in unhealthy) for i, where in enumerate(numa))
    pools = (DevicePool(GPU, devices, more.pop("prefers", False)),)
    return Inventory(numa=tuple(range(nodes)), topology_policy="restricted", devices=pools, **more)


def wants(count: int, kind: ManagedKind = ManagedKind.APP, name: str = "main") -> ManagedContainer:
    return ManagedContainer((), amounts({GPU: count}), kind, name)


def arrival(inventory: Inventory, *containers: ManagedContainer, taken: int = 0) -> Arrival:
    holdings = Holdings.of_empty(inventory)
    if taken:
        holdings.devices[GPU] = taken
    pod = ManagedPod(containers)
    return Arrival("uid", pod, False, holdings, [HeldResources()] * len(containers))


def hinted(inventory: Inventory, count: int, taken: int = 0) -> list[Hint] | None:
    return DeviceManager(inventory).hints(arrival(inventory, wants(count), taken=taken), 0)[GPU]


def allocated(
    inventory: Inventory, count: int, mask: int | None, taken: int = 0, prefer: Preference | None = None
) -> tuple[int, bool]:
    asked = arrival(inventory, wants(count), taken=taken)
    DeviceManager(inventory, prefer).allocate(asked, 0, Hint(mask, True))
    devices = dict(asked.held[0].devices)[GPU]
    assert asked.holdings.devices[GPU] == taken | devices
    return devices, asked.certain


def test_the_fewest_nodes_that_could_ever_do_are_preferred() -> None:
    assert hinted(machine(*TWO_AND_TWO), 2) == [Hint(1, True), Hint(2, True), Hint(3, False)]
    assert hinted(machine(*TWO_AND_TWO), 3) == [Hint(3, True)]


def test_taken_or_unhealthy_devices_change_what_is_preferred_but_not_what_is_possible() -> None:
    assert hinted(machine(*TWO_AND_TWO), 2, taken=0b0101) == [Hint(3, False)]
    assert hinted(machine(*TWO_AND_TWO, unhealthy=(0, 2)), 2) == [Hint(3, False)]


def test_more_than_there_are_cannot_be_met_and_nothing_is_met_anywhere() -> None:
    assert hinted(machine(*TWO_AND_TWO), 3, taken=0b0011) == []
    assert hinted(machine(*TWO_AND_TWO), 0) == [Hint(1, True), Hint(2, True), Hint(3, False)]


def test_devices_that_lie_nowhere_have_no_preference() -> None:
    assert hinted(machine(None, ()), 1) is None


def test_beside_devices_that_lie_somewhere_they_count_for_no_node() -> None:
    assert hinted(machine(None, (1,)), 1) == [Hint(2, True)]
    assert hinted(machine(None, (1,)), 2) == []


def test_a_device_on_two_nodes_counts_for_both() -> None:
    assert hinted(machine((0, 1), (1,)), 2) == [Hint(2, True), Hint(3, False)]


def test_only_kubelets_before_1_37_hint_at_nodes_without_devices() -> None:
    assert hinted(machine((0,), (0,)), 1) == [Hint(1, True)]
    assert hinted(machine((0,), (0,), minor=36), 1) == [Hint(1, True), Hint(3, False)]


def test_a_resource_that_no_plugin_has_registered_is_none_of_its_business() -> None:
    inventory = machine((0,))
    asked = arrival(inventory, ManagedContainer((), amounts({"vendor.io/other": 1})))
    manager = DeviceManager(inventory)
    assert manager.hints(asked, 0) == {} == manager.pod_hints(asked)
    manager.allocate(asked, 0, Hint(1, True))
    assert asked.held == [HeldResources()]


def test_a_pod_is_hinted_at_its_peak() -> None:
    inventory = machine(*TWO_AND_TWO)
    asked = arrival(inventory, wants(3, ManagedKind.INIT), wants(1, ManagedKind.SIDECAR), wants(1))
    assert DeviceManager(inventory).pod_hints(asked)[GPU] == [Hint(3, True)]


def test_a_container_that_holds_all_that_it_asks_for_gets_hints_of_those() -> None:
    inventory = machine(*TWO_AND_TWO)
    asked = arrival(inventory, wants(1), taken=0b1000)
    asked.held[0] = HeldResources(devices=((GPU, 0b1000),))
    assert DeviceManager(inventory).hints(asked, 0)[GPU] == [Hint(2, True), Hint(3, False)]
    assert DeviceManager(inventory).pod_hints(asked)[GPU] == [Hint(2, True), Hint(3, False)]
    asked = arrival(inventory, wants(2), taken=0b1000)
    asked.held[0] = HeldResources(devices=((GPU, 0b1000),))
    assert DeviceManager(inventory).hints(asked, 0)[GPU] == []


def test_the_devices_of_the_hinted_nodes_come_first() -> None:
    assert allocated(machine(*TWO_AND_TWO), 2, 0b10) == (0b1100, True)
    assert allocated(machine(*TWO_AND_TWO), 3, 0b10) == (0b1101, False)
    assert allocated(machine(*TWO_AND_TWO), 4, 0b10) == (0b1111, True)


def test_devices_of_other_nodes_come_before_those_that_lie_nowhere() -> None:
    assert allocated(machine(None, (0,), (1,)), 2, 0b10) == (0b110, True)
    assert allocated(machine(None, (0,), (1,)), 3, 0b10) == (0b111, True)


def test_which_of_several_is_taken_is_only_certain_if_the_plugin_states_it() -> None:
    def last(resource: str, available: int, must_include: int, size: int) -> int:
        assert (resource, available, must_include, size) == (GPU, 0b1100, 0, 1)
        return 0b1000

    assert allocated(machine(*TWO_AND_TWO), 1, 0b10) == (0b0100, False)
    assert allocated(machine(*TWO_AND_TWO), 1, 0b10, prefer=last) == (0b0100, False)
    assert allocated(machine(*TWO_AND_TWO, prefers=True), 1, 0b10) == (0b0100, False)
    assert allocated(machine(*TWO_AND_TWO, prefers=True), 1, 0b10, prefer=last) == (0b1000, True)


def test_without_a_hint_the_plugin_is_asked_over_all() -> None:
    def odd(resource: str, available: int, must_include: int, size: int) -> int:
        assert (available, must_include, size) == (0b1110, 0, 2)
        return 0b1010

    assert allocated(machine(*TWO_AND_TWO, prefers=True), 2, None, taken=1, prefer=odd) == (0b1010, True)


def test_a_plugin_that_names_too_few_too_many_or_what_is_taken_is_helped_out_at_random() -> None:
    inventory = machine(*TWO_AND_TWO, prefers=True)
    assert allocated(inventory, 2, None, prefer=lambda *_: 0b1000) == (0b1001, False)
    assert allocated(inventory, 2, None, prefer=lambda *_: 0b1110) == (0b0110, False)
    assert allocated(inventory, 1, None, taken=0b0111, prefer=lambda *_: 0b0001) == (0b1000, True)


def test_what_an_init_container_held_goes_to_those_after_it_but_a_sidecar_keeps_its_own() -> None:
    inventory = machine(*TWO_AND_TWO)
    manager = DeviceManager(inventory)
    asked = arrival(
        inventory, wants(2, ManagedKind.INIT), wants(1, ManagedKind.SIDECAR), wants(1), wants(1), taken=0b0011
    )
    manager.allocate(asked, 0, Hint(2, True))
    assert asked.reusable_devices == {GPU: 0b1100}
    manager.allocate(asked, 1, Hint(2, True))
    assert asked.held[1].devices == ((GPU, 0b0100),)
    assert asked.reusable_devices == {GPU: 0b1000}
    manager.allocate(asked, 2, Hint(2, True))
    assert asked.held[2].devices == ((GPU, 0b1000),)
    with pytest.raises(AllocationRefused, match=r"unavailable for nvidia.com/gpu\. Requested: 1, Available: 0"):
        manager.allocate(asked, 3, Hint(2, True))


def test_what_an_init_container_held_ties_the_next_to_its_node() -> None:
    inventory = machine(*TWO_AND_TWO)
    manager = DeviceManager(inventory)
    asked = arrival(inventory, wants(1, ManagedKind.INIT), wants(2))
    asked.reusable_devices = {GPU: 0b0100}
    asked.holdings.devices[GPU] = 0b0100
    assert manager.hints(asked, 1)[GPU] == [Hint(2, True), Hint(3, False)]


def test_a_device_with_a_topology_of_no_node_leaves_no_place_once_an_init_container_held_it() -> None:
    for where, expected in ((None, [Hint(1, True)]), ((), [])):
        inventory = machine(where, (0,))
        asked = arrival(inventory, wants(1, ManagedKind.INIT), wants(1))
        asked.reusable_devices = {GPU: 0b01}
        asked.holdings.devices[GPU] = 0b01
        assert DeviceManager(inventory).hints(asked, 1)[GPU] == expected


@pytest.mark.parametrize(
    ("unhealthy", "count", "held", "text"),
    [
        ((0, 1, 2, 3), 0, None, "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"),
        ((0,), 4, None, "requested number of devices unavailable for nvidia.com/gpu. Requested: 4, Available: 3"),
        ((0,), 1, 1, "previously allocated devices are no longer healthy; cannot allocate unhealthy devices"),
        ((), 2, 1, 'pod "uid" container "main" changed request for resource "nvidia.com/gpu" from 1 to 2'),
    ],
)
def test_what_cannot_be_allocated_is_refused_in_the_kubelets_words(
    unhealthy: Sequence[int], count: int, held: int | None, text: str
) -> None:
    inventory = machine(*TWO_AND_TWO, unhealthy=unhealthy)
    asked = arrival(inventory, wants(count), taken=held or 0)
    if held is not None:
        asked.held[0] = HeldResources(devices=((GPU, held),))
    with pytest.raises(AllocationRefused) as caught:
        DeviceManager(inventory).allocate(asked, 0, Hint(None, False))
    assert caught.value.reason == "UnexpectedAdmissionError"
    assert text in caught.value.message
