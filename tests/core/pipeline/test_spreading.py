# SPDX-License-Identifier: Apache-2.0
"""Replicas that are gangs spread over the domains of a level, as far as there is room, and never wait for that."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.model import Gang, Node
from dovetail.core.pipeline.signature import wanted_by
from tests.core.driven import POLICY, Driven, foreign
from tests.core.gang_oracle import RACK, ZONE, gpu_node, gpu_pod


def replica(
    name: str, pods: int = 2, gpus: int = 2, made_for: str = "LeaderWorkerSet/web", **more: object
) -> list[ev.Event]:
    made = [gpu_pod(f"{name}-{i}", gpus, name, made_for=made_for) for i in range(pods)]
    return [ev.GangChanged(Gang(name, "ns", name, pods, **({"spread": RACK} | more))), *map(ev.PodChanged, made)]


def racks(count: int, nodes: int = 4, gpus: int = 4) -> list[Node]:
    return [gpu_node(f"{rack}{i}", gpus, "z", f"r{rack}") for rack in range(count) for i in range(nodes)]


def per_rack(driven: Driven, prefix: str = "w") -> Counter[str]:
    """How many replicas have pods in each rack."""
    cluster, found = driven.state.cluster, set[tuple[str, str]]()
    for uid, placement in cluster.placements.items():
        if uid.startswith(prefix):
            found.add((cluster.nodes.labels[placement.slot].get(RACK, ""), uid.rpartition("-")[0]))
    return Counter(rack for rack, _ in found)


def zones(driven: Driven, prefix: str = "") -> set[str]:
    """The zones in which pods are."""
    cluster = driven.state.cluster
    found = [cluster.nodes.labels[one.slot] for uid, one in cluster.placements.items() if uid.startswith(prefix)]
    return {labels.get(ZONE, "") for labels in found}


def start(driven: Driven, *names: str, **more: object) -> None:
    for i, name in enumerate(names, 1):
        driven.at(driven.now_ms + i, *replica(name, **more))


def test_each_replica_goes_to_a_rack_with_the_fewest() -> None:
    driven = Driven(*racks(3))
    start(driven, *(f"w{i}" for i in range(9)))
    assert per_rack(driven) == {"r0": 3, "r1": 3, "r2": 3}


def test_without_the_annotation_they_are_packed() -> None:
    driven = Driven(*racks(3))
    start(driven, *(f"w{i}" for i in range(4)), spread="")
    assert len(per_rack(driven)) == 1


def test_a_rack_that_is_full_keeps_no_replica_waiting() -> None:
    driven = Driven(*racks(2))
    driven.apply_events(*(foreign(f"f{i}", f"1{i}", 4) for i in range(3)))
    start(driven, *(f"w{i}" for i in range(5)))
    assert per_rack(driven) == {"r0": 4, "r1": 1}


def test_nodes_without_the_label_are_used_last() -> None:
    driven = Driven(*racks(1, nodes=1), gpu_node("bare", 4))
    start(driven, "w0", "w1")
    assert per_rack(driven) == {"r0": 1, "": 1}


def test_other_objects_and_other_namespaces_are_not_counted() -> None:
    driven = Driven(*racks(2))
    start(driven, "v0", made_for="LeaderWorkerSet/other")
    start(driven, "w0")
    assert per_rack(driven, "v") == per_rack(driven)


def test_a_pod_that_is_replaced_goes_back_to_its_replica() -> None:
    driven = Driven(*racks(2))
    start(driven, "w0", "w1", "w2", required=(RACK,))
    gone = next(uid for uid in driven.state.cluster.placements if uid.startswith("w0"))
    driven.apply_events(ev.PodRemoved(gone))
    anew = gpu_pod("w0-9", 2, "w0", made_for="LeaderWorkerSet/web", created_ms=driven.now_ms + 9)
    driven.at(driven.now_ms + 10, ev.PodChanged(anew))
    assert sum(per_rack(driven).values()) == 3


@pytest.mark.parametrize("seed", range(20))
def test_what_starts_is_what_starts_without_the_annotation_and_it_is_as_even_as_can_be(seed: int) -> None:
    """With replicas that each fit one rack: none gets one more while another with fewer has room."""
    dice = Random(seed)
    count, nodes = dice.randint(2, 4), racks(dice.randint(2, 4), dice.randint(1, 3))
    taken = [foreign(f"f{i}", one.name, dice.randint(1, 4)) for i, one in enumerate(nodes) if dice.random() < 0.4]
    started = []
    for spread in (RACK, ""):
        driven = Driven(*nodes)
        driven.apply_events(*taken)
        start(driven, *(f"w{i}" for i in range(2 * count)), pods=1, gpus=4, spread=spread)
        started.append(len([uid for uid in driven.state.cluster.placements if uid.startswith("w")]))
        if spread:
            cluster = driven.state.cluster
            empty = [labels for slot, labels in enumerate(cluster.nodes.labels) if not cluster.on_slot.get(slot)]
            there = per_rack(driven)
            assert all(there[labels[RACK]] + 1 >= max(there.values()) for labels in empty)
    assert started[0] == started[1]


def test_a_level_above_racks_counts_its_own_domains() -> None:
    nodes = [gpu_node(f"{zone}{rack}", 4, zone, f"r{rack}") for zone in "ab" for rack in range(2)]
    driven = Driven(*nodes)
    start(driven, "w0", "w1", spread=ZONE)
    assert zones(driven) == {"a", "b"}


def test_a_search_for_the_spread_that_is_cut_off_keeps_no_replica_waiting() -> None:
    """Away from the first replica is room by count, but not for the parts in any arrangement; beside it there is."""
    nodes = [gpu_node(f"a{i}", gpus, "a", f"a{i}") for i, gpus in enumerate((16, 9, 8))]
    nodes += [gpu_node(f"b{i}", 3, "b", f"b{i}") for i in range(6)]
    driven = Driven(*nodes, policy=replace(POLICY, search_limit=60))
    driven.at(0, *replica("w0", 1, 16, spread=ZONE))
    root = [ev.GangChanged(Gang("w1", "ns", "w1", 0, spread=ZONE))]
    for i, size in enumerate([2, 2, 2, 2, 3, 3, 3]):
        root.append(ev.GangChanged(Gang(f"s{i}", "ns", f"s{i}", size, parent="w1", required=(RACK,))))
        made = [gpu_pod(f"s{i}-{j}", 1, f"s{i}", made_for="LeaderWorkerSet/web") for j in range(size)]
        root += map(ev.PodChanged, made)
    driven.at(1, *root)
    assert zones(driven, "s") == {"a"} and not driven.holds()


def test_refusals_are_remembered_for_the_replicas_of_one_object_alone() -> None:
    driven = Driven(*racks(2))
    driven.apply_events(*replica("w0"), *replica("w1"), *replica("v0", made_for="LeaderWorkerSet/other"))
    driven.apply_events(*replica("x0", spread=""))
    state = driven.state
    wanted = {}
    for name in ("w0", "w1", "v0", "x0"):
        (group,) = state.workloads.groups(name)
        wanted[name] = wanted_by(state, "default", group, name)
    assert wanted["w0"] == wanted["w1"] is not None
    assert len({wanted["w0"], wanted["v0"], wanted["x0"]}) == 3
