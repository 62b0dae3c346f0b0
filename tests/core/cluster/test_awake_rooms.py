# SPDX-License-Identifier: Apache-2.0
"""Instances that can sleep: no GPU ever promises more memory than it has to those that may be awake together, and none
is refused that has room. The oracle is the definition, over all sets of instances that may be awake."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cluster.awake_rooms import AwakeRooms
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Evict, Hold
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.event_handlers import apply
from dovetail.core.model import CPU, PODS, SHARED_GPU, Gang, Node, Pod, Request
from dovetail.core.queues.amounts import GPU as GPU_CLASS
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State
from tests.breadth import BREADTH

MEMORY_MIB = 10


ONE_CARD = Sharing(SHARED_GPU, 1, 8)


def node(sharing: Sharing = ONE_CARD) -> Node:
    amounts = {CPU: 64_000, PODS: 110, sharing.resource: sharing.cards * sharing.replicas}
    return Node("n", tuple(sorted(amounts.items())), gpu_memory_mib=MEMORY_MIB, sharing=sharing)


def instance(uid: str, awake: int, asleep: int, group: str = "team", **more: Any) -> Pod:
    """`asleep` 0: a pod that cannot sleep."""
    count = more.pop("count", 1)
    own = {"gpu_asleep_mib": asleep, "turn_group": group} if asleep else {}
    return Pod(uid, group, uid, Request(((SHARED_GPU, count),), gpu_memory_mib=awake, **own), created_ms=1, **more)


def of(*nodes: Node) -> State:
    state = State()
    for one in nodes:
        apply(state, ev.NodeChanged(one))
    return state


def place(state: State, *pods: Pod) -> list[str]:
    """The uids of those that are bound, one after the other."""
    found = []
    for one in pods:
        found += [d.uid for d in step(state, [ev.PodChanged(one)], 0) if isinstance(d, Bind)]
        assert state.cluster.check() == []
    return found


def most_mib(pods: list[Pod]) -> int:
    """The most memory that these pods of one GPU can have together, over every set of them that may be awake: a set is
    allowed if each group's awake extras fit into the largest extra of the group."""
    asleep = sum(one.request.gpu_asleep_mib or one.request.gpu_memory_mib for one in pods)
    groups: dict[str, list[int]] = {}
    for one in pods:
        if one.request.gpu_asleep_mib:
            extra = one.request.gpu_memory_mib - one.request.gpu_asleep_mib
            groups.setdefault(one.request.turn_group, []).append(extra)
    return asleep + sum(
        max(sum(some) for n in range(len(extras) + 1) for some in combinations(extras, n) if sum(some) <= max(extras))
        for extras in groups.values()
    )  # fmt: skip


def test_instances_share_a_gpu_that_one_of_them_fills_while_it_is_awake() -> None:
    state = of(node())
    assert place(state, instance("a", 8, 1), instance("b", 7, 1)) == ["a", "b"]
    # 1 + 1 asleep and a room of 7: one MiB is left, for a third that needs no larger room, and for nobody after it.
    assert place(state, instance("c", 8, 1), instance("d", 2, 1)) == ["c"]


def test_without_turns_the_second_would_wait() -> None:
    assert place(of(node()), instance("a", 8, 0), instance("b", 7, 0)) == ["a"]


def test_pods_of_two_namespaces_take_no_turns_with_each_other() -> None:
    pods = instance("a", 8, 1), instance("b", 7, 1, "others"), instance("c", 2, 1, "others")
    assert place(of(node()), *pods) == ["a", "c"]


def test_a_room_is_no_larger_than_those_that_are_left_need() -> None:
    state = of(node())
    assert place(state, instance("large", 8, 1), instance("small", 3, 1)) == ["large", "small"]
    assert place(state, instance("plain", 4, 0)) == []
    decisions = step(state, [ev.PodRemoved("large")], 1)
    assert [d.uid for d in decisions if isinstance(d, Bind)] == ["plain"]
    assert state.cluster.check() == []


def test_an_instance_of_several_gpus_has_its_room_on_each() -> None:
    state = of(node(sharing=Sharing(SHARED_GPU, 2, 8)))
    assert place(state, instance("tp", 8, 1, count=2), instance("tp-too", 9, 1, count=2)) == ["tp", "tp-too"]
    assert place(state, instance("plain", 1, 0)) == []


def test_where_the_memory_of_each_client_is_limited_the_equal_part_must_be_enough_while_it_is_awake() -> None:
    mps = Sharing(SHARED_GPU, 1, 2, "memory")
    assert place(of(node(sharing=mps)), *[instance(uid, 5, 1) for uid in "abc"]) == ["a", "b"]
    assert place(of(node(sharing=mps)), instance("a", 6, 1)) == []


def test_a_pod_that_waits_is_tried_again_when_the_room_of_its_group_is_on_another_gpu() -> None:
    state = of(node(sharing=Sharing(SHARED_GPU, 2, 8)))
    a, b, plain = instance("a", 6, 1), instance("b", 6, 1, "others"), instance("plain", 2, 0)
    first = [replace(pod, node="n", bound_ms=1, devices=(gpu,)) for pod, gpu in ((a, 0), (b, 1), (plain, 0))]
    step(state, [ev.PodChanged(pod) for pod in first], 0)
    assert place(state, instance("waits", 9, 4)) == []
    # The kubelet gave them each other's GPU: as much is left of both as before.
    swapped = [replace(pod, devices=(1 - (pod.devices or (0,))[0],)) for pod in first[:2]]
    decisions = step(state, [ev.PodChanged(pod) for pod in swapped], 1)
    assert [d.uid for d in decisions if isinstance(d, Bind)] == ["waits"]
    assert state.cluster.check() == []


@pytest.mark.parametrize("asleep", [1, MEMORY_MIB])
def test_an_instance_that_no_gpu_can_hold_awake_is_refused_for_good(asleep: int) -> None:
    state = of(node())
    decisions = step(state, [ev.PodChanged(instance("a", MEMORY_MIB + 1, asleep))], 0)
    (hold,) = [d for d in decisions if isinstance(d, Hold)]
    assert [(r.reason, r.when) for r in hold.refusal.nodes] == [(Reason.GPU_MEMORY, When.NEVER)]


def test_a_queue_is_charged_for_what_an_instance_has_while_it_is_awake() -> None:
    state = of(node())
    place(state, instance("a", 8, 1), instance("b", 8, 1))
    assert [dict(state.shares.amounts(uid))[GPU_CLASS] for uid in "ab"] == [800, 800]
    assert dict(state.shares.wanted([instance("c", 8, 1)]))[GPU_CLASS] == 800


@pytest.mark.parametrize(("count", "bound"), [(3, 3), (4, 0)])
def test_a_gang_of_instances_has_one_room(count: int, bound: int) -> None:
    # 7 for the one that is awake, and 1 for each: three fit on a card of 10, four never do.
    state = of(node())
    members = [ev.PodChanged(instance(f"g{i}", 8, 1, gang="g")) for i in range(count)]
    decisions = step(state, [ev.GangChanged(Gang("g", "team", "g", count)), *members], 0)
    assert sum(isinstance(d, Bind) for d in decisions) == bound
    assert [d.refusal.reason for d in decisions if isinstance(d, Hold)] == [Reason.GANG_TOO_LARGE] * (not bound)
    assert state.cluster.check() == []


def test_no_more_pods_are_evicted_for_an_instance_than_its_room_needs() -> None:
    state = of(node())
    for uid, awake, asleep in (("a", 3, 0), ("b", 5, 1), ("c", 2, 0)):
        bound = instance(uid, awake, asleep, priority=1, node="n", bound_ms=1, devices=(0,))
        step(state, [ev.PodChanged(bound)], 0)
    assert state.cluster.check() == [] and len(_on(state, 0)) == 3
    high = instance("high", 8, 1, priority=9)
    (evicted,) = [d.uids for d in step(state, [ev.PodChanged(high)], 1) if isinstance(d, Evict)]
    there = {one.uid: one for one in _on(state, 0)}
    rest = [one for uid, one in there.items() if uid not in evicted]
    assert most_mib([*rest, high]) <= MEMORY_MIB
    assert all(most_mib([*rest, high, there[uid]]) > MEMORY_MIB for uid in evicted)
    assert state.cluster.check() == []


def test_the_audit_finds_a_room_that_no_instance_needs() -> None:
    state = of(node())
    place(state, instance("a", 8, 1))
    state.cluster.nodes.awake_rooms.add("others", 0, 0, 5)
    assert state.cluster.check() == ["room of others on GPU 0 of slot 0: 5 but 0 is true"]


@pytest.mark.parametrize("slots", [range(3), range(2, 3), range(40), [2, 0], []])
def test_rooms_are_those_of_the_slots_that_are_asked_for(slots: Sequence[int]) -> None:
    rooms = AwakeRooms()
    for group, slot, gpu, extra in (("a", 0, 1, 5), ("a", 2, 0, 3), ("a", 2, 0, 4), ("b", 2, 1, 9), ("a", 50, 0, 7)):
        rooms.add(group, slot, gpu, extra)
    assert rooms.rooms("a", 2, slots).T.tolist() == [[rooms.room("a", slot, gpu) for gpu in range(2)] for slot in slots]


@st.composite
def instances(draw: st.DrawFn) -> list[Pod]:
    found = []
    for number in range(draw(st.integers(1, 7))):
        awake = draw(st.integers(1, MEMORY_MIB + 1))
        asleep = draw(st.integers(0, awake - 1))
        group, count = draw(st.sampled_from(["a", "b"])), draw(st.sampled_from([1, 1, 1, 2]))
        found.append(instance(f"p{number}", awake, asleep, group, count=count))
    return found


@settings(max_examples=60 * BREADTH, deadline=None)
@given(instances(), st.lists(st.integers(0, 6), max_size=4))
@pytest.mark.slow
def test_no_allowed_set_of_awake_instances_needs_more_than_there_is_and_none_with_room_is_refused(
    pods: list[Pod], leave: list[int]
) -> None:
    cards = 2
    state = of(node(sharing=Sharing(SHARED_GPU, cards, 4)))
    for one in pods:
        before = [_on(state, card) for card in range(cards)]
        fitting = [card for card in before if len(card) < 4 and most_mib([*card, one]) <= MEMORY_MIB]
        bound = place(state, one)
        wanted = dict(one.request.resources)[SHARED_GPU]
        assert bool(bound) == (len(fitting) >= wanted), (one, before)
    for number in leave:
        if f"p{number}" in state.cluster.placements:
            step(state, [ev.PodRemoved(f"p{number}")], 1)
            assert state.cluster.check() == []
    assert all(most_mib(_on(state, card)) <= MEMORY_MIB for card in range(cards))
    again = restore(state.policy, take(state))
    assert again.cluster.check() == []
    assert [_on(again, card) for card in range(cards)] == [_on(state, card) for card in range(cards)]


def _on(state: State, card: int) -> list[Pod]:
    placements = sorted(state.cluster.placements.values(), key=lambda one: one.uid)
    return [one.pod for one in placements if one.share_bits >> card & 1]
