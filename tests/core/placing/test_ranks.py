# SPDX-License-Identifier: Apache-2.0
"""Ranks that follow each other are neighbours in the fabric, as near as the chosen nodes allow."""

import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cluster import Cluster
from dovetail.core.decisions import Bind
from dovetail.core.dra.extended import claim_key
from dovetail.core.dra.types import Allocation, Claim, ClaimSpec, DeviceClass
from dovetail.core.model import GPU, Container, LabelSelector, PeerTerm, Pod, Request, Requirement
from dovetail.core.placing.gangs import Group
from dovetail.core.placing.ranks import settle
from tests.core.driven import Driven, gang
from tests.core.gang_oracle import RACK, ZONE, domain, gpu_node, gpu_pod


def borders(sequence: Sequence[tuple[object, ...]]) -> int:
    """How many borders of domains the ring through these places crosses; a place is a path down to the node."""
    ring = [*sequence, sequence[0]]
    return sum(one != other for here, there in pairwise(ring) for one, other in zip(here, there, strict=True))


def fewest_borders(places: Sequence[tuple[object, ...]]) -> int:
    """The same for the best of all orders: all of them are tried (Held and Karp)."""
    count = len(places)

    @cache
    def rest(last: int, left: int) -> int:
        if not left:
            return step(last, 0)
        return min(step(last, i) + rest(i, left ^ 1 << i) for i in range(count) if left >> i & 1)

    def step(one: int, other: int) -> int:
        return sum(a != b for a, b in zip(places[one], places[other], strict=True))

    return rest(0, (1 << count) - 2)


def paths(driven: Driven, binds: dict[str, str]) -> dict[str, tuple[object, ...]]:
    nodes = {record.name: record for record in driven.state.cluster.nodes.records if record is not None}
    return {
        uid: (domain(nodes[node], ZONE), (dict(nodes[node].labels).get(ZONE), dict(nodes[node].labels).get(RACK)), node)
        for uid, node in binds.items()
    }


def drawn(dice: random.Random) -> Driven:
    nodes = [
        gpu_node(f"n{i}", dice.choice((1, 2, 4)), dice.choice(("z1", "z2")), dice.choice(("r1", "r2")))
        for i in range(dice.randint(3, 7))
    ]
    return Driven(*nodes)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.slow
def test_the_ring_of_ranks_crosses_as_few_borders_as_any_order_of_the_pods(seed: int) -> None:
    dice = random.Random(seed)
    driven = drawn(dice)
    count = dice.randint(2, 8)
    pods = [gpu_pod(f"p{i}", 1, "g", ordinals=(i,), created_ms=dice.randint(1, 9)) for i in range(count)]
    binds = driven.at(0, gang(pods=count), *map(ev.PodChanged, dice.sample(pods, count)))
    if binds:
        places = paths(driven, binds)
        assert borders([places[pod.uid] for pod in pods]) == fewest_borders(list(places.values()))
        assert ranks_of(driven) == {pod.uid: rank for rank, pod in enumerate(pods)}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.slow
def test_a_master_of_its_own_sub_gang_stands_beside_the_first_workers(seed: int) -> None:
    dice = random.Random(seed)
    driven = drawn(dice)
    count = dice.randint(2, 7)
    workers = [gpu_pod(f"w{i}", 1, "workers", ordinals=(1, i), created_ms=dice.randint(1, 9)) for i in range(count)]
    master = gpu_pod("m", 1, "master", ordinals=(0, 0))
    gangs = gang(pods=0), gang("master", 1, parent="g"), gang("workers", count, parent="g")
    binds = driven.at(0, *gangs, *map(ev.PodChanged, [*workers, master]))
    if binds:
        places = paths(driven, binds)
        assert borders([places[pod.uid] for pod in (master, *workers)]) == fewest_borders(list(places.values()))


def ranks_of(driven: Driven) -> dict[str, int]:
    return {one.uid: one.rank for one in driven.last if isinstance(one, Bind)}


def test_without_indices_names_count_and_two_comes_before_ten() -> None:
    driven = Driven(*[gpu_node(f"n{i}", 4, "z", f"r{i % 2}") for i in range(3)])
    pods = [gpu_pod(f"w-{i}", 1, "g", created_ms=100 - i) for i in range(12)]
    binds = driven.at(0, gang(pods=12), *map(ev.PodChanged, pods))
    assert len({binds[f"w-{i}"] for i in range(4)}) == 1
    assert ranks_of(driven) == {f"w-{i}": i for i in range(12)}


@pytest.mark.parametrize(
    ("ordinals", "ranks"),
    [
        # Of a Job whose index 0 has succeeded, and whose others are made again.
        ([(3,), (1,), (2,)], [3, 1, 2]),
        ([(0, 7), (0, 2)], [7, 2]),
        # A JobSet, and a master with its workers.
        ([(1, 0), (0, 1), (1, 1), (0, 0)], [2, 1, 3, 0]),
        ([(1, 1), (1, 0), (0, 0)], [2, 1, 0]),
        # A launcher without an index before its workers.
        ([(1,), (), (0,)], [2, 0, 1]),
    ],
)
def test_a_rank_is_what_the_controller_states(ordinals: list[tuple[int, ...]], ranks: list[int]) -> None:
    driven = Driven(*[gpu_node(f"n{i}", 2) for i in range(2)])
    pods = [gpu_pod(f"p{i}", 1, "g", ordinals=one) for i, one in enumerate(ordinals)]
    driven.at(0, gang(pods=len(pods)), *map(ev.PodChanged, pods))
    assert ranks_of(driven) == {f"p{i}": rank for i, rank in enumerate(ranks)}


@pytest.mark.parametrize("count", [2, 1000])
@pytest.mark.slow
def test_an_index_that_two_pods_have_makes_no_two_equal_ranks(count: int) -> None:
    """As of two Jobs in one PodGroup, or where a user wrote the labels."""
    driven = Driven(*[gpu_node(f"n{i}", 2) for i in range(count)])
    pods = [gpu_pod(f"p{i}", 1, "g", ordinals=(i % count,)) for i in range(2 * count)]
    binds = driven.at(0, gang(pods=2 * count), *map(ev.PodChanged, pods))
    ranks = ranks_of(driven)
    assert sorted(ranks.values()) == list(range(2 * count))
    assert [binds[uid] for uid in sorted(ranks, key=ranks.__getitem__)] == [f"n{i // 2}" for i in range(2 * count)]


def labelled(uid: str, index: int, role: str) -> Pod:
    return gpu_pod(uid, 1, "g", ordinals=(index,), labels=(("role", role),))


def repelling(uid: str, node: str, role: str, key: str) -> ev.Event:
    """A pod that runs there and lets none of this role into its domain."""
    term = PeerTerm(LabelSelector((Requirement("role", "In", (role,)),)), frozenset({"ns"}), key)
    return ev.PodChanged(Pod(uid, "ns", uid, Request(anti_affinity=(term,)), node=node))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.slow
def test_pods_that_peers_treat_differently_are_not_exchanged(seed: int) -> None:
    """Those of one role are in order among themselves, and no other pod's rule is broken for it."""
    dice = random.Random(seed)
    driven = drawn(dice)
    records = [record for record in driven.state.cluster.nodes.records if record is not None]
    carriers = [(dice.choice(records), dice.choice((ZONE, RACK))) for _ in range(dice.randint(1, 2))]
    driven.apply_events(*[repelling(f"x{i}", node.name, "a", key) for i, (node, key) in enumerate(carriers)])
    count = dice.randint(3, 6)
    pods = [labelled(f"p{i}", i, dice.choice("ab")) for i in range(count)]
    binds = driven.at(0, gang(pods=count), *map(ev.PodChanged, dice.sample(pods, count)))
    if binds:
        places, by_name = paths(driven, binds), {record.name: record for record in records}
        for role in "ab":
            mine = [places[pod.uid] for pod in pods if ("role", role) in pod.labels]
            assert not mine or borders(mine) == fewest_borders(mine)
        for node, key in carriers:
            for pod in pods:
                there = dict(by_name[binds[pod.uid]].labels)[key] == dict(node.labels)[key]
                assert not (("role", "a") in pod.labels and there)


def in_reverse(cluster: Cluster, pods: list[Pod]) -> list[str]:
    """The last pod on the first node, and so on: then where each is once the ranks are settled."""
    with cluster.trial() as trial:
        for slot, pod in enumerate(reversed(pods)):
            cluster.place(pod, slot)
        settle(cluster, Group(pods))
        trial.keep()
    return [cluster.nodes.names[cluster.placements[pod.uid].slot] for pod in pods]


def plain(uid: str, **more: Any) -> Pod:
    return gpu_pod(uid, 1, "g", **more)


@pytest.mark.parametrize(
    ("more", "exchanged"),
    [
        ({}, True),
        ({"labels": (("index", "1"),)}, True),
        ({"owner": "ns/another"}, True),
        ({"claims": ("data",)}, False),
        ({"device_claims": ("ns/gpu",)}, False),
        ({"nominated_node": "n0"}, False),
        ({"queue": "another"}, False),
        ({"user": "another"}, False),
        ({"priority": 1}, False),
        ({"request": Request(((GPU, 2),))}, False),
    ],
)
def test_what_keeps_a_pod_in_its_place(more: dict[str, Any], exchanged: bool) -> None:
    cluster = Driven(gpu_node("n0", 2), gpu_node("n1", 2)).state.cluster
    pods = [plain("p0"), replace(plain("p1"), **more)]
    assert in_reverse(cluster, pods) == (["n0", "n1"] if exchanged else ["n1", "n0"])
    assert cluster.check() == []


def test_pods_with_a_resource_by_claim_keep_their_places() -> None:
    cluster = Driven(gpu_node("n0", 2), gpu_node("n1", 2)).state.cluster
    assert in_reverse(cluster, [plain("p0", by_claim=(GPU,)), plain("p1", by_claim=(GPU,))]) == ["n1", "n0"]


def test_a_pod_that_a_node_refused_keeps_its_place() -> None:
    cluster = Driven(gpu_node("n0", 2), gpu_node("n1", 2)).state.cluster
    cluster.avoided["p0"] = {"n0": 1}
    assert in_reverse(cluster, [plain("p0"), plain("p1")]) == ["n1", "n0"]


def test_a_pod_whose_claim_has_devices_already_keeps_its_place() -> None:
    """An earlier try allocated them for its extended resources, on a node."""
    claims = (cluster := Driven(gpu_node("n0", 2), gpu_node("n1", 2)).state.cluster).claims
    pods = [plain(uid, containers=(Container("main", ((GPU, 1),)),)) for uid in ("p0", "p1")]
    claims.put_class(DeviceClass("gpu.nvidia.com", extended_resource=GPU))
    namespace, name = claim_key(pods[0]).split("/")
    claims.put_claim(Claim("u", namespace, name, ClaimSpec(), "p0", Allocation(node="n1")))
    assert in_reverse(cluster, pods) == ["n1", "n0"]


def test_of_owners_whose_pods_were_rejected_each_keeps_its_places() -> None:
    cluster = Driven(gpu_node("n0", 2), gpu_node("n1", 2)).state.cluster
    cluster.rejections.add("ns/one", "n0", "UnexpectedAdmissionError", 0)
    assert in_reverse(cluster, [plain("p0", owner="ns/one"), plain("p1", owner="ns/two")]) == ["n1", "n0"]


def test_a_trial_that_is_dropped_leaves_no_exchanged_pod() -> None:
    cluster = Driven(gpu_node("n0", 2), gpu_node("n1", 2)).state.cluster
    pods = [plain("p0"), plain("p1")]
    with cluster.trial():
        for slot, pod in enumerate(reversed(pods)):
            cluster.place(pod, slot)
        settle(cluster, Group(pods))
    assert (cluster.placements, cluster.on_slot, cluster.check()) == ({}, {}, [])
