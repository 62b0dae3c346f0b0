# SPDX-License-Identifier: Apache-2.0
"""What many pods that differ leave behind when they are gone: little, however long they were; what they cost others."""

from __future__ import annotations

import pytest

from dovetail.core import events as ev
from dovetail.core import labels
from dovetail.core.cluster.rejections import MOST_OWNERS
from dovetail.core.cluster.shapes import MOST_UNUSED
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Hold
from dovetail.core.model import (
    CPU,
    GPU,
    Gang,
    HostPort,
    LabelSelector,
    Node,
    NodeTerm,
    PeerTerm,
    Pod,
    Request,
    Requirement,
    Spread,
)
from dovetail.core.reasons import Reason
from dovetail.core.state import State
from dovetail.core.workloads.index import MOST_DEPTH, MOST_GANGS

HOST = "kubernetes.io/hostname"


def node(name: str = "n0", **amounts: int) -> Node:
    offered = {CPU: 64_000, "memory": 2**40, "pods": 250, GPU: 8} | {
        k.replace("__", "/"): v for k, v in amounts.items()
    }
    return Node(name, tuple(sorted(offered.items())), ((HOST, name),))


def world(*nodes: Node) -> State:
    state = State()
    step(state, [ev.NodeChanged(one) for one in nodes or (node(),)], 1)
    return state


def term(n: int, key: str = HOST, operator: str = "In", label: str = "app") -> PeerTerm:
    values = (f"v{n}",) if operator in ("In", "NotIn") else ()
    return PeerTerm(LabelSelector((Requirement(label, operator, values),)), frozenset(("t",)), key)  # type: ignore[arg-type]


def pod(uid: str, request: Request, **fields: object) -> Pod:
    return Pod(uid, "t", uid, request, **fields)  # type: ignore[arg-type]


def sizes(state: State) -> dict[str, int]:
    cluster, shapes = state.cluster, state.cluster.shapes
    return {
        "shapes": len(list(shapes.known())),
        "requests": len(shapes._asked),
        "users": sum(1 for asked in shapes._asked.values() if asked.users),
        "rows": len(state.score_cache._rows),
        "resources": len(cluster.nodes.resources),
        "columns": len(cluster.nodes.columns._by_key),
        "counts": len(cluster.peers.counts),
        "carriers": len(cluster.peers.carriers),
        "ports": len(cluster.ports.in_use),
        "classes": len(cluster.mix._classes) + len(cluster.mix.counts),
        "known": len(state.equivalence._known) + len(state.equivalence._workloads) + len(state.equivalence.no_room),
    }


def large(n: int) -> Request:
    """Of a long pod: no two are equal."""
    return Request(
        ((CPU, 1_000), (f"example.com/r{n}", 1)),
        node_selector=((f"k{n}", "v"),),
        node_terms=tuple(NodeTerm((Requirement(f"k{n}-{m}", "NotIn", ("v",)),)) for m in range(20)),
        spread=tuple(Spread(term(n * 50 + m, f"t{m}"), 1, required=False) for m in range(10)),
        anti_affinity=tuple(term(n * 50 + m) for m in range(20)),
        ports=(HostPort("0.0.0.0", "TCP", n + 1),),
    )


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("managed", [False, True])
@pytest.mark.slow
def test_of_pods_with_long_rules_nothing_stays(placed: bool, managed: bool) -> None:
    state = world()
    step(state, [ev.PodChanged(pod("ordinary", Request(((CPU, 1_000),))))], 2)
    before = sizes(state)
    for n in range(100):
        one = pod(f"p{n}", large(n), node="n0" if placed else "", managed=managed)
        step(state, [ev.PodChanged(one)], 3 + n)
    for n in range(100):
        step(state, [ev.PodRemoved(f"p{n}")], 200 + n)
    now = sizes(state)
    # One column stands for all resources that no node offers.
    assert now.pop("resources") <= before.pop("resources") + 1
    # Of a label that the nodes have.
    assert now.pop("columns") <= before.pop("columns") + 1
    assert now == before
    assert state.cluster.check() == []


@pytest.mark.slow
def test_of_many_different_small_pods_the_last_ones_are_remembered() -> None:
    state = world()
    for n in range(MOST_UNUSED + 500):
        step(state, [ev.PodChanged(pod("p", Request(((CPU, 1 + n),))))], 2 * n + 1)
        step(state, [ev.PodRemoved("p")], 2 * n + 2)
    assert sizes(state)["shapes"] == MOST_UNUSED
    assert sizes(state)["rows"] <= MOST_UNUSED
    assert sizes(state)["users"] == 0
    request = Request(((CPU, MOST_UNUSED + 499),))
    assert state.cluster.shapes.of(request) is state.cluster.shapes.of(request)


def test_a_job_that_comes_again_finds_what_was_worked_out_for_it() -> None:
    state, request = world(), Request(((CPU, 1_000),))
    step(state, [ev.PodChanged(pod("a", request))], 1)
    shape = state.cluster.shapes.of(request)
    step(state, [ev.PodRemoved("a")], 2)
    step(state, [ev.PodChanged(pod("b", request))], 3)
    assert state.cluster.shapes.of(request) is shape
    assert shape.id in state.score_cache._rows


def test_made_up_resources_make_no_columns_and_are_reported_by_name() -> None:
    state = world()
    before = len(state.cluster.nodes.resources)
    asked = [pod(f"p{n}", Request(((f"example.com/r{n}", 2), (f"example.com/s{n}", 1)))) for n in range(50)]
    decisions = step(state, [ev.PodChanged(one) for one in asked], 1)
    assert len(state.cluster.nodes.resources) == before + 1
    reported = {uid: decision.refusal for decision in decisions if isinstance(decision, Hold) for uid in decision.uids}
    (why,) = reported["p7"].nodes
    assert (why.reason, why.detail, why.nearest) == (Reason.INSUFFICIENT, "example.com/r7", "needs 2, n0 has at most 0")


def test_a_resource_that_is_offered_later_is_counted_for_earlier_pods() -> None:
    state, asks = world(), Request((("example.com/nic", 2),))
    step(state, [ev.PodChanged(pod("there", asks, node="n0", managed=False)), ev.PodChanged(pod("waits", asks))], 1)
    assert "waits" not in state.cluster.placements
    decisions = step(state, [ev.NodeChanged(node(**{"example.com__nic": 4}))], 2)
    assert [one.uid for one in decisions if isinstance(one, Bind)] == ["waits"]
    assert state.cluster.check() == []
    decisions = step(state, [ev.PodChanged(pod("third", asks))], 3)
    assert not any(isinstance(one, Bind) for one in decisions)
    step(state, [ev.PodRemoved("there")], 4)
    assert "third" in state.cluster.placements
    assert state.cluster.check() == []


@pytest.fixture
def held_against(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every comparison of a selector with labels."""
    found: list[object] = []
    matches = labels.matches
    monkeypatch.setattr(
        "dovetail.core.cluster.peers.matches", lambda selector, own: found.append(selector) or matches(selector, own)
    )
    return found


def test_a_pod_is_held_against_the_terms_that_may_pick_it(held_against: list[object]) -> None:
    state = world(*[node(f"n{n}") for n in range(4)])
    for n in range(40):
        terms = tuple(term(100 * n + m, operator="Exists" if m % 2 else "In", label=f"k{n}-{m}") for m in range(100))
        one = pod(f"p{n}", Request(((CPU, 1),), anti_affinity=(*terms, term(n))), node="n0", managed=False)
        step(state, [ev.PodChanged(one)], n + 1)
    held_against.clear()
    ordinary = pod("ordinary", Request(((CPU, 1_000),)), labels=(("app", "v7"), ("tier", "x")))
    decisions = step(state, [ev.PodChanged(ordinary)], 100)
    assert [one.node for one in decisions if isinstance(one, Bind)] != ["n0"]
    assert len(held_against) <= 20


def test_what_a_new_pod_speaks_of_is_sought_among_those_that_it_may_pick(held_against: list[object]) -> None:
    state = world()
    here = [pod(f"p{n}", Request(), node="n0", labels=(("app", f"v{n}"),)) for n in range(200)]
    step(state, [ev.PodChanged(one) for one in here], 1)
    held_against.clear()
    step(state, [ev.PodChanged(pod("new", Request(affinity=(term(3),), anti_affinity=(term(500), term(501)))))], 2)
    assert len(held_against) <= 20
    (count,) = [count for count in state.cluster.peers.counts.values() if count.pods]
    assert count.pods == {0: 1}


@pytest.mark.slow
def test_a_pod_that_is_rejected_by_kubelets_is_not_remembered_for_ever() -> None:
    state = world()
    for n in range(3 * MOST_OWNERS):
        step(state, [ev.PodRejected(f"owner-{n}", "n0", "OutOfcpu")], n + 1)
    assert len(list(state.cluster.rejections)) == MOST_OWNERS
    assert state.cluster.rejections.nodes(f"owner-{3 * MOST_OWNERS - 1}", 3 * MOST_OWNERS)


def test_what_did_not_fit_is_forgotten_although_no_room_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.core.pipeline.equivalence._MOST_PARTS", 100)
    state = world()
    most = 0
    for n in range(400):
        step(state, [ev.PodChanged(pod(f"p{n}", Request(((CPU, 10**9 + n),))))], n + 1)
        step(state, [ev.PodRemoved(f"p{n}")], n + 1)
        most = max(most, len(state.equivalence.no_room))
    assert 0 < most <= 100


@pytest.mark.slow
@pytest.mark.parametrize("below", [MOST_GANGS - 1, MOST_GANGS, 3 * MOST_GANGS])
def test_gangs_of_one_root_have_a_limit(below: int) -> None:
    state = world()
    gangs = [Gang("root", "t", "root", 0, min_groups=2)]
    gangs += [Gang(f"g{n}", "t", f"g{n}", 1, parent="root") for n in range(below)]
    pods = [pod(f"p{n}", Request(((CPU, 1),)), gang=f"g{n}") for n in range(below)]
    decisions = step(state, [ev.GangChanged(gang) for gang in gangs] + [ev.PodChanged(one) for one in pods], 1)
    if below < MOST_GANGS:
        assert sum(isinstance(one, Bind) for one in decisions) == 250, "as many as a node takes"
        return
    (hold,) = decisions
    assert isinstance(hold, Hold)
    assert (hold.refusal.reason, len(hold.uids)) == (Reason.INVALID, MOST_GANGS)
    assert "the limit is 255" in str(hold.refusal)
    assert len(state.workloads.tree("root")) == MOST_GANGS + 1
    # Once they are few enough they start.
    gone = [ev.PodRemoved(one.uid) for one in pods[100:]] + [ev.GangRemoved(gang.id) for gang in gangs[101:]]
    assert sum(isinstance(one, Bind) for one in step(state, gone, 2)) == 100


@pytest.mark.parametrize("depth", [MOST_DEPTH, MOST_DEPTH + 1, 2_000])
def test_gangs_below_each_other_have_a_limit(depth: int) -> None:
    state = world()
    gangs = [
        Gang(f"g{n}", "t", f"g{n}", 1 if n == depth - 1 else 0, parent=f"g{n - 1}" if n else "") for n in range(depth)
    ]
    member = pod("p", Request(((CPU, 1_000),)), gang=f"g{depth - 1}")
    decisions = step(state, [*[ev.GangChanged(gang) for gang in gangs], ev.PodChanged(member)], 1)
    if depth == MOST_DEPTH:
        assert [one.uid for one in decisions if isinstance(one, Bind)] == ["p"]
        return
    (hold,) = [one for one in decisions if isinstance(one, Hold) and "p" in one.uids]
    assert hold.refusal.reason is Reason.GANG_MISSING
    assert "lies too deep" in str(hold.refusal)
