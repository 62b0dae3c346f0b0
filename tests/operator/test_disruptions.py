# SPDX-License-Identifier: Apache-2.0
"""What one part of the operator takes out of service another part counts, before any watch shows it."""

from __future__ import annotations

from msgspec import convert

from dovetail.kube.objects.stack import GPUStack, NodePool
from dovetail.operator.coexistence.states import SINCE
from dovetail.operator.disruptions import Disruptions
from dovetail.operator.fleet import Holders, fleet_node
from dovetail.operator.rollout.facts import StackObjects, facts
from dovetail.operator.watched.nodes import WatchedNode


def node(name: str = "n0", **annotations: str) -> WatchedNode:
    meta = {"name": name, "labels": {"nvidia.com/gpu.present": "true", "rack": "r1"}, "annotations": annotations}
    ready = {"type": "Ready", "status": "True"}
    amounts = {"nvidia.com/gpu": "8"}
    return convert({"metadata": meta, "status": {"conditions": [ready], "allocatable": amounts}}, WatchedNode)


def test_nothing_is_known_of_the_others_before_each_of_them_has_read_what_it_holds() -> None:
    disruptions, woken = Disruptions(), list[str]()
    one, two = disruptions.join(lambda: woken.append("one")), disruptions.join(lambda: woken.append("two"))
    assert one.others is None and not two.known
    two.hold(["a"])
    assert one.others == {"a"} and two.others is None and woken == ["one"]
    one.hold(["b"])
    two.hold(["a"])
    assert two.others == {"b"} and woken == ["one", "two"]
    two.hold(())
    assert one.others == frozenset() and woken == ["one", "two", "one"]


def test_a_node_with_a_takeover_is_out_of_service_for_a_rollout_and_left_for_later() -> None:
    stack, nodes = GPUStack(), [node("free"), node("held"), node("since", **{SINCE: "1"})]
    found = facts(stack, StackObjects(nodes, {}, {}, {}, {}, frozenset(("held",))))
    assert {name: (one.held, one.fleet.out) for name, one in found.items()} == {
        "free": (False, False), "held": (True, True), "since": (True, True),
    }  # fmt: skip


def test_a_node_counts_with_its_pool_its_rack_and_its_gpus() -> None:
    found = fleet_node(node(), None, NodePool("a"), "rack", Holders(1, 5))
    assert (found.pool, found.rack, found.gpus, found.out, found.empty, found.ends_ms) == (
        "a",
        "r1",
        8,
        False,
        False,
        5,
    )
