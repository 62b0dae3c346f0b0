# SPDX-License-Identifier: Apache-2.0
"""Of a ReplicaSet those pods end first that free the most GPUs of one domain; an order stays while it is as good."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.model import GPU, PODS, Node, Pod
from dovetail.core.placing.scale_down import Domains, FreeingPod, first_to_end
from dovetail.core.policy import Policy
from tests.core.driven import Driven, foreign
from tests.core.gang_oracle import gpu_pod

CLIQUE = "nvidia.com/gpu.clique"
OWNER = "ns/web"


def node(name: str, gpus: int = 8, clique: str = "", **more: object) -> Node:
    return Node(name, ((GPU, gpus), (PODS, 99)), ((CLIQUE, clique),) if clique else (), **more)


def replica(uid: str, where: str, gpus: int = 4, created_ms: int = 1, **more: object) -> Pod:
    own = {"owner": OWNER, "made_for": "Deployment/web"} | more
    return replace(gpu_pod(uid, gpus, node=where), created_ms=created_ms, bound_ms=1, **own)


def cluster(*nodes: Node) -> Driven:
    return Driven(*nodes, policy=Policy())


def order(driven: Driven, costs: dict[str, int] | None = None, most: int = 16) -> list[FreeingPod]:
    domains = Domains(driven.state.cluster)
    return list(first_to_end(domains, domains.replica_sets().get(OWNER, {}), costs or {}, most))


def test_the_pod_that_alone_frees_the_largest_domain_comes_first() -> None:
    driven = cluster(node("a", 8), node("b", 4), node("c", 8))
    for pod in (replica("on-a", "a"), replica("on-b", "b"), replica("on-c", "c")):
        driven.apply_events(ev.PodChanged(pod))
    driven.apply_events(foreign("other", "c", 1))
    assert order(driven) == [FreeingPod("on-a", 8, "", "a"), FreeingPod("on-b", 4, "", "b")]


def test_a_clique_counts_more_than_a_node_once_one_pod_is_left_there() -> None:
    nodes = [node(f"k{i}", 4, "one") for i in range(3)] + [node("big", 8)]
    driven = cluster(*nodes)
    driven.apply_events(ev.PodChanged(replica("in-clique", "k1")), ev.PodChanged(replica("on-big", "big")))
    assert order(driven)[0] == FreeingPod("in-clique", 12, CLIQUE, "one")
    driven.apply_events(foreign("other", "k0", 1))
    assert [one.uid for one in order(driven)] == ["on-big", "in-clique"]


def test_two_pods_of_one_node_follow_each_other_and_the_first_reports_that_another_has_to_end() -> None:
    driven = cluster(node("a"), node("b"))
    for uid, where in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b")):
        driven.apply_events(ev.PodChanged(replica(uid, where)))
    found = order(driven)
    assert [(one.domain, one.others) for one in found] == [("a", 1), ("a", 0), ("b", 1), ("b", 0)]


def test_a_pod_that_is_ending_holds_nothing_any_more_so_that_the_order_of_the_next_ones_stays() -> None:
    driven = cluster(node("a"))
    for uid in ("a1", "a2"):
        driven.apply_events(ev.PodChanged(replica(uid, "a")))
    (first, second) = order(driven)
    driven.apply_events(ev.PodChanged(replica(first.uid, "a", deleting=True)))
    assert order(driven) == [second]


@pytest.mark.parametrize(
    "left_out",
    [
        replica("x", "a", made_for="StatefulSet/web"),
        replica("x", "a", owner=""),
        replica("x", "a", managed=False),
        replica("x", "a", gpus=0),
    ],
)
def test_only_bound_gpu_pods_of_replica_sets_are_ordered(left_out: Pod) -> None:
    driven = cluster(node("a"))
    driven.apply_events(ev.PodChanged(left_out))
    assert order(driven) == []


@pytest.mark.parametrize("more", [{"unschedulable": True}])
def test_a_node_that_takes_no_pods_is_no_gain(more: dict[str, object]) -> None:
    driven = cluster(node("a", **more))
    driven.apply_events(ev.PodChanged(replica("x", "a")))
    assert order(driven) == []


def test_an_order_stays_while_it_is_as_good_and_the_newest_comes_first_without_one() -> None:
    driven = cluster(node("a"), node("b"), node("c"))
    for i, where in enumerate("abc"):
        driven.apply_events(ev.PodChanged(replica(where, where, created_ms=10 + i)))
    assert [one.uid for one in order(driven)] == ["c", "b", "a"]
    assert [one.uid for one in order(driven, {"a": -9})] == ["a", "c", "b"]


def freed(driven: Driven, ended: tuple[str, ...]) -> int:
    """The GPUs of the largest domain that is idle once these have ended and was not before the last of them had."""

    def idle(gone: tuple[str, ...]) -> dict[str, int]:
        placements = driven.state.cluster.placements
        held = {one.slot for uid, one in placements.items() if uid not in gone}
        nodes, found = driven.state.cluster.nodes, dict[str, int]()
        cliques: dict[str, list[int]] = {}
        for name, slot in nodes.slots.items():
            found[name] = 8 if slot not in held else 0
            if clique := nodes.labels[slot].get(CLIQUE, ""):
                cliques.setdefault(clique, []).append(slot)
        return found | {name: 8 * len(slots) * (not held & set(slots)) for name, slots in cliques.items()}

    before, now = idle(ended[:-1]), idle(ended)
    return max((gpus for name, gpus in now.items() if not before[name]), default=0)


@pytest.mark.parametrize("seed", range(30))
def test_no_order_frees_a_larger_domain_with_its_first_pod_and_none_frees_anything_after_the_last(seed: int) -> None:
    dice = random.Random(seed)
    driven = cluster(*(node(f"n{i}", 8, dice.choice(["", "x", "y"])) for i in range(5)))
    uids = [f"p{i}" for i in range(dice.randint(1, 5))]
    for uid in uids:
        driven.apply_events(ev.PodChanged(replica(uid, f"n{dice.randrange(5)}", 2)))
    for i in range(dice.randint(0, 2)):
        driven.apply_events(foreign(f"f{i}", f"n{dice.randrange(5)}"))
    found = tuple(one.uid for one in order(driven))
    best = max(freed(driven, (uid,)) for uid in uids)
    assert freed(driven, found[:1]) == best if found else best == 0
    ever = max(max(freed(driven, some[:n]) for n in range(1, len(some) + 1)) for some in permutations(uids))
    assert (ever > 0) == bool(found)
    for one in order(driven):
        ended = found[: found.index(one.uid) + 1]
        assert freed(driven, ended) == (one.gpus if not one.others else 0)


@pytest.mark.parametrize("seed", range(10))
def test_the_order_that_is_in_force_is_the_order_that_is_found_again(seed: int) -> None:
    dice = random.Random(seed)
    driven = cluster(*(node(f"n{i}", 8, dice.choice(["", "x", "y"])) for i in range(8)))
    for i in range(12):
        driven.apply_events(ev.PodChanged(replica(f"p{i}", f"n{dice.randrange(8)}", 1, created_ms=dice.randrange(9))))
    found = [one.uid for one in order(driven)]
    in_force = {uid: i - len(found) for i, uid in enumerate(found)}
    assert [one.uid for one in order(driven, in_force)] == found
    if found:
        driven.apply_events(ev.PodRemoved(found[0]))
        assert [one.uid for one in order(driven, in_force)] == found[1:]
