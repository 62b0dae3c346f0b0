# SPDX-License-Identifier: Apache-2.0
"""What a gang keeps of its pods is what each of them has, whichever comes, changes and goes."""

import random

import pytest
from msgspec.structs import replace

from dovetail.core.cluster import Cluster
from dovetail.core.model import GPU, Gang, Node, Pod, Request
from dovetail.core.placing.scores import Tightest
from dovetail.core.workloads.index import WorkloadIndex
from dovetail.core.workloads.members import Members

ASKED = (Request(((GPU, 1),)), Request(((GPU, 2),)))


def drawn(dice: random.Random, uid: str) -> Pod:
    return Pod(
        uid, "ns", uid, dice.choice(ASKED), priority=dice.choice((0, 0, 0, 7)), created_ms=dice.choice((1, 2, 3)),
        gang=dice.choice(("g", "g", "h", "")), node=dice.choice(("", "", "n")), managed=dice.random() < 0.9,
        deleting=dice.random() < 0.1,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.slow
def test_a_roster_knows_of_its_gangs_what_their_pods_declare(seed: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster(Tightest())
    cluster.put_node(Node("n", ((GPU, 8),)))
    roster, reported = WorkloadIndex(cluster), dict[str, Pod]()
    for gang in ("g", "h"):
        roster.put_gang(Gang(gang, "ns", gang, min_count=2, parent="g" if gang == "h" else ""))
    for _ in range(60):
        uid = f"p{dice.randrange(12)}"
        if dice.random() < 0.25:
            roster.remove_pod(uid)
            reported.pop(uid, None)
            cluster.unplace(uid)
        else:
            if uid in reported and reported[uid].gang != (pod := drawn(dice, uid)).gang:
                # A pod that joins another gang is the last there.
                del reported[uid]
            else:
                pod = drawn(dice, uid)
            reported[uid] = pod
            roster.put_pod(pod)
            if pod.node and uid not in cluster.placements:
                cluster.place(pod, 0)
        members = [pod for gang in ("g", "h") for pod in reported.values() if pod.gang == gang]
        assert {pod.uid for pod in roster.members("g")} == {pod.uid for pod in members}
        assert all(roster.pods[pod.uid] is pod for pod in roster.members("g"))
        assert set(roster.waiting("g")) == {p.uid for p in members if p.managed and p.uid not in cluster.placements}
        assert roster.waits("g") == bool(roster.waiting("g"))
        assert roster.first("g") is (roster.members("g") or [None])[0]
        own = roster._members.get("h") or Members()
        assert (own.bound, own.leaving) == tuple(
            sum(one.gang == "h" and bool(one.node) and (one.deleting or not gone) for one in members) for gone in (0, 1)
        )
        assert {pod.uid for pod in roster.bound("g")} == {pod.uid for pod in members if pod.node}
        kinds = {roster.kinds[pod.uid] for pod in members}
        among = [roster.kinds[pod.uid] for pod in roster.kinds_among("g")]
        assert set(among) == kinds and len(among) == len(kinds)
        group = roster._group("h")
        ours = [pod for pod in reported.values() if pod.gang == "h"]
        startable = [p for p in ours if p.managed and not p.deleting and p.uid not in cluster.placements and not p.node]
        assert group.pods == sorted(startable, key=lambda pod: (-pod.priority, pod.created_ms, pod.uid))
        assert not group.uniform or len({replace(pod, uid="", name="", created_ms=0, node="") for pod in ours}) == 1


def test_a_pod_that_changes_keeps_its_place_among_those_that_were_reported() -> None:
    members = Members()
    for uid in ("a", "b", "c"):
        members.put(Pod(uid, "ns", uid, ASKED[0]), 1, None)
    assert members.uniform
    members.put(Pod("a", "ns", "a", ASKED[1], priority=5), 2, 1)
    assert list(members.pods) == ["a", "b", "c"]
    assert [uid for _, _, uid in members.order] == ["a", "b", "c"]
    assert not members.uniform
    assert [pod.uid for pod in members.distinct()] == ["b", "a"]
    members.put(Pod("a", "ns", "a", ASKED[1], priority=-5), 2, 2)
    assert [uid for _, _, uid in members.order] == ["b", "c", "a"]
    members.remove(members.pods["a"], 2)
    assert members.uniform
    assert members.order == [(0, 0, "b"), (0, 0, "c")]
