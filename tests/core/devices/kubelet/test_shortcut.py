# SPDX-License-Identifier: Apache-2.0
"""The short way of a pod of one container into a node ends where the long way does."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from dovetail.core.devices.kubelet.admission import NEW, Kubelet
from dovetail.core.devices.kubelet.holdings import Holdings
from dovetail.core.devices.kubelet.inventory import InventoryError
from dovetail.core.devices.kubelet.pods import ManagedContainer, ManagedKind, ManagedPod, amounts
from tests.core.devices.kubelet.test_admission import GIB, MACHINE, asks, lowest, only_gpus
from tests.referee.kubelet_nodes import Dice

HUGE = amounts({"cpu": 1000, "memory": GIB, "hugepages-2Mi": GIB})


def alone(dice: Dice, pod: ManagedPod) -> ManagedPod:
    """Mostly a pod of the first app container alone."""
    first = next((one for one in pod.containers if one.kind is ManagedKind.APP), None)
    return pod if first is None or dice.likely(0.1) else replace(pod, containers=(first,))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(8))
def test_on_random_nodes_it_gives_what_the_long_way_gives_and_refuses_nobody_itself(chunk: int) -> None:
    ways: Counter[str] = Counter()
    for seed in range(100 * chunk, 100 * (chunk + 1)):
        dice = Dice(seed)
        node = dice.node()
        try:
            inventory = node.inventory()
        except InventoryError:
            continue
        kubelet, holdings = Kubelet(inventory, node.prefer), Holdings.of_empty(inventory)
        menu = [alone(dice, dice.pod(node)) for _ in range(5)]
        for number in range(25):
            if holdings.pods and dice.likely(0.2):
                holdings = kubelet.release(holdings, dice.dice.choice(sorted(holdings.pods)))
                continue
            pod = dice.dice.choice(menu)
            bare = Holdings(holdings.shared_cpus, holdings.memory, dict(holdings.devices), {})
            verdict = kubelet.admit(bare, NEW, pod)
            shortcut = kubelet.shortcut(pod)
            in_use = tuple(sorted(holdings.devices.items()))
            found = shortcut.admit(holdings.shared_cpus, holdings.memory, in_use) if shortcut is not None else None
            if found is not None:
                after = verdict.holdings
                held = after.pods.pop(NEW)
                devices = tuple(sorted(after.devices.items()))
                assert (verdict.admitted, verdict.reason, verdict.message) == (True, "", "")
                *rest, own, certain = found
                assert rest == [after.shared_cpus, after.memory, devices]
                assert (own.held, certain) == (held, verdict.certain)
            ways["short" if found is not None else "none" if shortcut is None else f"long, {verdict.admitted}"] += 1
            holdings = kubelet.admit(holdings, f"p{number}", pod).holdings
    # A pod that takes the long way although there is a short one is refused: the short one is for all that are let in.
    assert ways["short"] > 300 and ways["long, False"] and ways["none"], ways
    assert not ways["long, True"] and not ways["long, None"], ways


@pytest.mark.parametrize(
    "pod",
    [
        ManagedPod((asks(1000), asks(1000))),
        ManagedPod((asks(1000, kind=ManagedKind.INIT), asks(1000))),
        ManagedPod((ManagedContainer(HUGE, HUGE),)),
    ],
)
def test_pods_of_several_containers_or_of_missing_resources_take_the_long_way(pod: ManagedPod) -> None:
    assert Kubelet(MACHINE, lowest).shortcut(pod) is None


def test_nobody_is_let_in_where_it_is_not_known_what_the_kubelet_does() -> None:
    assert Kubelet(MACHINE, lowest).shortcut(ManagedPod((only_gpus(1),))) is not None
    assert Kubelet(replace(MACHINE, topology_policy=None), lowest).shortcut(ManagedPod((only_gpus(1),))) is None
