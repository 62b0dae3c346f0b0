# SPDX-License-Identifier: Apache-2.0
"""Which nodes and which GPUs a pod gets by how the GPUs are wired."""

from __future__ import annotations

import random
from itertools import combinations, permutations

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Hold
from dovetail.core.devices.layout import BOARD, NODE, SYS, Layout
from dovetail.core.model import CPU, GPU, PODS, Gang, Node, Pod, Request
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State

ISLANDS = [[4 * (i != j and i // 4 == j // 4) for j in range(8)] for i in range(8)]


def wired(links: list[list[int]], numa: list[int] | None = None) -> Layout:
    count = len(links)
    numa = numa or [2 * i // count for i in range(count)]
    pcie = tuple(
        tuple(BOARD if i == j else NODE if numa[i] == numa[j] else SYS for j in range(count)) for i in range(count)
    )
    return Layout(tuple(numa), pcie, tuple(map(tuple, links)))


def node(name: str, layout: Layout | None, gpus: int = 8) -> ev.Event:
    return ev.NodeChanged(Node(name, ((CPU, 64_000), (GPU, gpus), (PODS, 100)), layout=layout))


def pod(uid: str, gpus: int, **more: object) -> Pod:
    linked, near = bool(more.pop("linked", False)), bool(more.pop("near", False))
    request = Request(((GPU, gpus),), nvlink_required=linked, near_nics=near)
    return Pod(uid, "ns", uid, request, **more)  # type: ignore[arg-type]


def decided(state: State, *events: ev.Event) -> list[Bind | Hold]:
    decisions = step(state, events, state.now_ms + 1)
    assert state.cluster.check() == []
    return [d for d in decisions if isinstance(d, Bind | Hold)]


def held(uid: str, on: str, *devices: int) -> ev.Event:
    return ev.PodChanged(pod(uid, len(devices), node=on, devices=devices, managed=False))


def test_a_job_of_four_is_not_split_over_two_islands_while_a_node_could_hold_it_whole() -> None:
    state = State()
    [bind] = decided(
        state,
        node("split", wired(ISLANDS)),
        node("whole", wired(ISLANDS)),
        held("a", "split", 0, 1, 4, 5),
        held("b", "whole", 0),
        ev.PodChanged(pod("job", 4)),
    )
    assert isinstance(bind, Bind)
    assert (bind.node, bind.devices) == ("whole", (4, 5, 6, 7))


def test_where_all_are_as_close_the_tightest_node_is_taken() -> None:
    state = State()
    [bind] = decided(
        state,
        node("empty", wired(ISLANDS)),
        node("tight", wired(ISLANDS)),
        held("a", "tight", 0, 1),
        ev.PodChanged(pod("job", 4)),
    )
    assert isinstance(bind, Bind)
    assert (bind.node, bind.devices) == ("tight", (4, 5, 6, 7))


def test_a_slow_kind_of_node_is_not_shunned() -> None:
    pcie_only = wired([[0] * 8 for _ in range(8)], [0] * 8)
    state = State()
    [bind] = decided(
        state,
        node("fast", wired(ISLANDS)),
        node("slow", pcie_only, 8),
        held("a", "slow", 0),
        ev.PodChanged(pod("job", 2)),
    )
    assert isinstance(bind, Bind)
    assert bind.node == "slow"


def test_the_gpus_that_were_written_down_are_held_and_others_are_chosen_where_they_are_taken() -> None:
    state = State()
    decided(state, node("n", wired(ISLANDS)), held("a", "n", 2, 7), held("b", "n", 2, 3))
    assert {uid: p.devices for uid, p in state.cluster.placements.items()} == {"a": (2, 7), "b": (0, 1)}


def test_what_the_kubelet_gave_instead_is_held_when_it_becomes_known() -> None:
    state = State()
    decided(state, node("n", wired(ISLANDS)), held("a", "n", 0, 1), held("b", "n", 2, 3))
    decided(state, held("a", "n", 2, 3), held("b", "n", 0, 1))
    assert {uid: p.devices for uid, p in state.cluster.placements.items()} == {"a": (2, 3), "b": (0, 1)}
    [bind] = decided(state, ev.PodChanged(pod("job", 4)))
    assert isinstance(bind, Bind)
    assert bind.devices == (4, 5, 6, 7)


def test_what_was_decided_stays_when_its_node_changes_before_the_bind_is_seen() -> None:
    state, layout = State(), wired(ISLANDS)
    [bind] = decided(state, node("n", layout), held("a", "n", 0, 1), ev.PodChanged(pod("job", 2)))
    assert isinstance(bind, Bind)
    assert bind.devices == (2, 3)
    decided(state, ev.PodRemoved("a"), broken("n", layout, 1 << 7, 7))
    assert state.cluster.placements["job"].devices == (2, 3)


def test_without_a_layout_or_with_one_of_other_gpus_the_lowest_gpus_are_counted_off() -> None:
    for layout in (None, wired(ISLANDS)):
        state = State()
        [bind] = decided(state, node("n", layout, 6), held("a", "n", 1), ev.PodChanged(pod("job", 2)))
        assert isinstance(bind, Bind)
        assert bind.devices == (0, 2)


def broken(name: str, layout: Layout, out: int, gpus: int) -> ev.Event:
    return ev.NodeChanged(Node(name, ((CPU, 64_000), (GPU, gpus), (PODS, 100)), layout=layout, gpus_out=out))


@pytest.mark.parametrize("offered", [7, 8], ids=["its kubelet knows", "its kubelet does not know yet"])
def test_a_broken_gpu_is_not_allocated_and_the_wiring_of_the_others_still_counts(offered: int) -> None:
    state = State()
    [bind] = decided(state, broken("n", wired(ISLANDS), 1 << 1, offered), ev.PodChanged(pod("job", 4)))
    assert isinstance(bind, Bind)
    assert bind.devices == (4, 5, 6, 7)
    [bind, hold] = decided(state, ev.PodChanged(pod("a", 3)), ev.PodChanged(pod("b", 1)))
    assert isinstance(bind, Bind)
    assert bind.devices == (0, 2, 3)
    assert isinstance(hold, Hold)


def test_a_pod_keeps_the_gpu_that_broke_under_it_and_nobody_gets_it_afterwards() -> None:
    state, layout = State(), wired(ISLANDS)
    decided(state, node("n", layout), held("a", "n", 0, 1))
    decided(state, broken("n", layout, 1 << 1, 7))
    assert state.cluster.placements["a"].devices == (0, 1)
    decided(state, ev.PodRemoved("a"))
    binds = decided(state, *(ev.PodChanged(pod(f"p{i}", 1)) for i in range(8)))
    assert sorted(bind.devices for bind in binds if isinstance(bind, Bind)) == [(i,) for i in (0, 2, 3, 4, 5, 6, 7)]
    [bind] = decided(state, node("n", layout))
    assert isinstance(bind, Bind)
    assert bind.devices == (1,)


def test_more_gpus_missing_than_are_reported_to_be_broken_means_that_they_are_only_counted() -> None:
    state = State()
    [bind] = decided(state, broken("n", wired(ISLANDS), 1 << 1, 6), ev.PodChanged(pod("job", 2)))
    assert isinstance(bind, Bind)
    assert bind.devices == (0, 1)
    assert state.cluster.nodes.layout(0) is None


def test_a_pod_that_requires_nvlinks_waits_where_the_free_gpus_have_none() -> None:
    state = State()
    layout = wired(ISLANDS)
    [hold] = decided(
        state, node("n", layout), held("a", "n", 0, 1), held("b", "n", 4, 5), ev.PodChanged(pod("job", 4, linked=True))
    )
    assert isinstance(hold, Hold)
    [count] = hold.refusal.nodes
    assert (count.reason, count.when, count.detail) == (Reason.NVLINK, When.NOT_YET, "(4 GPUs)")
    [bind] = decided(state, ev.PodRemoved("b"))
    assert isinstance(bind, Bind)
    assert bind.devices == (4, 5, 6, 7)


@pytest.mark.parametrize("layout", [None, wired([[0] * 8 for _ in range(8)])])
def test_a_pod_that_requires_nvlinks_never_starts_on_nodes_without_them(layout: Layout | None) -> None:
    [hold] = decided(State(), node("n", layout), ev.PodChanged(pod("job", 2, linked=True)))
    assert isinstance(hold, Hold)
    assert hold.refusal.when is When.NEVER
    assert hold.refusal.nodes[0].reason is Reason.NVLINK


def test_one_gpu_needs_no_link() -> None:
    [bind] = decided(State(), node("n", None), ev.PodChanged(pod("job", 1, linked=True)))
    assert isinstance(bind, Bind)


def test_a_gang_that_requires_nvlinks_is_placed_as_often_as_islands_allow() -> None:
    members = [ev.PodChanged(pod(f"p{i}", 2, linked=True, gang="g")) for i in range(4)]
    reported = [node("n", wired(ISLANDS)), held("a", "n", 0), ev.GangChanged(Gang("g", "ns", "g", 3)), *members]
    state = State()
    binds = [d for d in decided(state, *reported) if isinstance(d, Bind)]
    assert len(binds) == 3
    assert {bind.devices[0] // 4 == bind.devices[1] // 4 for bind in binds} == {True}
    four = [node("n", wired(ISLANDS)), held("a", "n", 0), ev.GangChanged(Gang("g", "ns", "g", 4)), *members]
    [hold] = decided(State(), *four)
    assert isinstance(hold, Hold)
    assert hold.refusal.when is When.NOT_YET


def linked(layout: Layout, gpus: tuple[int, ...]) -> bool:
    """Whether a ring of NVLinks goes through all of these GPUs, by trying all rings."""
    first, *rest = gpus
    return any(
        all(layout.nvlinks[a][b] for a, b in zip((first, *order), (*order, first), strict=True))
        for order in permutations(rest)
    )


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.slow
def test_nodes_with_linked_gpus_free_are_found_and_such_gpus_are_allocated(seed: int) -> None:
    chance = random.Random(seed)
    layouts: dict[str, Layout] = {}
    free: dict[str, set[int]] = {}
    events: list[ev.Event] = []
    for name in ("x", "y", "z"):
        count = chance.randint(2, 6)
        links = [[0] * count for _ in range(count)]
        for i, j in combinations(range(count), 2):
            links[i][j] = links[j][i] = chance.choice([0, 0, 2])
        layouts[name], free[name] = wired(links), set(range(count))
        events.append(node(name, layouts[name], count))
        taken = chance.sample(range(count), chance.randint(0, count - 1))
        free[name] -= set(taken)
        if taken:
            events.append(held(name, name, *taken))
    size = chance.randint(2, 4)
    [decision] = decided(State(), *events, ev.PodChanged(pod("job", size, linked=True)))
    possible = {
        name for name, left in free.items() if any(linked(layouts[name], s) for s in combinations(sorted(left), size))
    }
    if isinstance(decision, Hold):
        assert not possible
        full = (name for name, w in layouts.items() if any(linked(w, s) for s in combinations(range(w.gpus), size)))
        assert (decision.refusal.when is When.NOT_YET) == bool(list(full))
    else:
        assert decision.node in possible
        assert linked(layouts[decision.node], decision.devices)


def test_a_pod_that_uses_rdma_gets_gpus_near_nics() -> None:
    from dovetail.core.devices.layout import PIX, Nic

    full = [[18 * (i != j) for j in range(4)] for i in range(4)]
    layout = replace(wired(full), nics=(Nic((PIX, SYS, SYS, SYS)), Nic((SYS, SYS, PIX, SYS))))
    [bind] = decided(State(), node("n", layout, 4), ev.PodChanged(pod("job", 2, near=True)))
    assert isinstance(bind, Bind)
    assert bind.devices == (0, 2)


def test_gpus_that_vanish_while_they_are_held_are_allocated_to_nobody_and_come_back_to_their_pods() -> None:
    state = State()
    decided(state, node("n", wired(ISLANDS)), held("a", "n", 0, 7), held("b", "n", 4, 5))
    decided(state, node("n", wired(ISLANDS), 6))
    assert state.cluster.placements["b"].devices == (4, 5)
    # Six are left, and which they are is not known: they are counted.
    [bind] = decided(state, ev.PodChanged(pod("job", 2)))
    assert isinstance(bind, Bind)
    assert len({gpu for p in state.cluster.placements.values() for gpu in p.devices}) == 6
    [hold] = decided(state, ev.PodChanged(pod("more", 1)))
    assert isinstance(hold, Hold)
    decided(state, ev.PodRemoved("job"), ev.PodRemoved("more"), node("n", wired(ISLANDS)))
    assert {uid: p.devices for uid, p in state.cluster.placements.items()} == {"a": (0, 7), "b": (4, 5)}
