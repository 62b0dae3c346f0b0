# SPDX-License-Identifier: Apache-2.0
"""Steps: when a workload is tried, when it is reported, and what must make no difference at all."""

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision
from dovetail.core.event_handlers import apply
from dovetail.core.model import (
    CPU,
    GPU,
    PODS,
    HostPort,
    LabelSelector,
    Namespace,
    Node,
    PeerTerm,
    Pod,
    PreferredPeers,
    Problem,
    Request,
    Requirement,
    Taint,
)
from dovetail.core.pipeline.attempt import Attempt
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State
from tests.conftest import Decide
from tests.core.driven import DEADLINE_MS, POLICY, TELL_AGAIN_MS, Driven, foreign, gang, lone, members
from tests.core.gang_oracle import FABRIC, RACK, gpu_node, gpu_pod

ONE_GPU = gpu_node("a", 1)


@pytest.fixture
def tried(deciding: Callable[[Decide], None]) -> list[str]:
    """The roots that were tried, in order."""
    roots: list[str] = []

    def noted(attempt: Attempt) -> list[Decision]:
        roots.append(attempt._workload)
        return attempt.decide()

    deciding(noted)
    return roots


# The line.


def test_the_higher_priority_goes_first_then_the_older_then_the_first_to_come() -> None:
    pods = [
        lone("late", priority=5, created_ms=9),
        lone("low", priority=-1, created_ms=1),
        lone("high", priority=7, created_ms=10),
        lone("old", priority=5, created_ms=3),
        lone("as old", priority=5, created_ms=3),
    ]
    driven = Driven(gpu_node("a", 9))
    assert list(driven.at(0, *pods)) == ["high", "old", "as old", "late", "low"]


def test_a_gang_stands_where_its_own_priority_and_age_put_it() -> None:
    driven = Driven(gpu_node("a", 9))
    gangs = [
        gang("g", 1, priority=3),
        gang("h", 1),
        gang("i", 1, created_ms=5),
        *members(1, "g", priority=9, created_ms=1),
        *members(1, "h", priority=4, created_ms=7),
        *members(1, "i", priority=4, created_ms=9),
    ]
    assert list(driven.at(0, *gangs, lone("p", priority=4, created_ms=6))) == ["i0", "p", "h0", "g0"]


def test_a_step_tries_no_more_than_the_policy_allows_and_the_next_goes_on() -> None:
    driven = Driven(gpu_node("a", 9), policy=replace(POLICY, attempts_per_step=2))
    pods = [lone(f"p{i}") for i in range(5)]
    sizes = [len(driven.at(0, *pods))]
    while driven.state.busy:
        sizes.append(len(driven.at(0)))
    assert sizes == [2, 2, 1]


def test_pods_that_look_at_others_count_for_more_of_a_step() -> None:
    """Each of them is placed by a look at every node, so a gang of them ends the step."""
    driven = Driven(gpu_node("a", 9), policy=replace(POLICY, attempts_per_step=2))
    request = Request(((GPU, 1),), ports=(HostPort("", "TCP", 80),))
    pods = [ev.PodChanged(Pod(f"p{i}", "ns", f"p{i}", request)) for i in range(2)]
    assert len(driven.at(0, *pods)) == 1
    assert driven.state.busy


def test_the_heap_does_not_grow_with_workloads_that_left() -> None:
    """As in a process that does not lead: it hears of pods that come and go, and takes no step."""
    state = State()
    for number in range(1_000):
        apply(state, lone(f"p{number}"))
        apply(state, ev.PodRemoved(f"p{number}"))
    assert sum(map(len, state.queue._heaps.values())) < 200


def test_nobody_is_tried_again_without_a_change(tried: list[str]) -> None:
    driven = Driven(ONE_GPU)
    driven.at(0, lone("p"), lone("q"), gang(), *members(2))
    assert sorted(tried) == ["g", "pod/p", "pod/q"]
    tried.clear()
    for now_ms in (1, 2, TELL_AGAIN_MS, 10 * DEADLINE_MS):
        driven.at(now_ms, lone("q"), ev.NodeChanged(ONE_GPU), gang())
        assert not driven.state.busy
    assert tried == []


@pytest.mark.parametrize(
    "freeing",
    [
        pytest.param([ev.PodRemoved("x")], id="a pod leaves"),
        pytest.param([ev.NodeChanged(gpu_node("b", 1))], id="a node comes"),
        pytest.param([ev.NodeChanged(gpu_node("a", 2))], id="a node grows"),
    ],
)
def test_a_pod_that_waits_is_tried_when_room_is_freed(tried: list[str], freeing: Sequence[ev.Event]) -> None:
    driven = Driven(ONE_GPU)
    driven.at(0, foreign("x", "a"), lone("p"))
    tried.clear()
    assert driven.at(1, *freeing).keys() == {"p"}


def test_a_pod_that_waits_for_a_peer_is_tried_when_it_is_placed() -> None:
    near = PeerTerm(LabelSelector(), frozenset(("ns",)), RACK)
    driven = Driven(gpu_node("a", 4, rack="r"))
    waits = Pod("waits", "other", "waits", Request(affinity=(near,)), priority=9)
    assert driven.at(0, ev.PodChanged(waits)) == {}
    driven.at(1, lone("peer"))
    assert driven.at(2).keys() == {"waits"}


def test_a_bound_pod_that_gets_other_labels_keeps_its_gpus_and_lets_others_come() -> None:
    apart = PeerTerm(LabelSelector((Requirement("app", "Exists"),)), frozenset(("ns",)), RACK)
    driven = Driven(gpu_node("a", 4, rack="r"))
    driven.at(0, lone("first"), lone("p", labels=(("app", "web"),)))
    waits = replace(gpu_pod("waits"), request=Request(((GPU, 2),), anti_affinity=(apart,)))
    assert driven.at(1, ev.PodRemoved("first"), ev.PodChanged(waits)) == {}
    driven.at(2, ev.PodChanged(replace(driven.state.workloads.pods["p"], labels=())))
    [bind] = [decision for decision in driven.last if isinstance(decision, Bind)]
    assert (bind.uid, bind.devices) == ("waits", (0, 2))


def test_a_pod_that_changes_is_tried_in_its_turn() -> None:
    driven = Driven(ONE_GPU)
    driven.at(0, lone("p", 2))
    assert driven.at(1, lone("p", 1)).keys() == {"p"}


def test_the_room_of_a_bind_is_counted_until_it_fails() -> None:
    driven = Driven(ONE_GPU)
    assert driven.at(0, lone("p"), bind=False) == {"p": "a"}
    assert driven.at(1, lone("q")) == {}
    assert driven.at(2, ev.PodRemoved("p")).keys() == {"q"}


# What is reported.


def test_a_refusal_is_reported_once() -> None:
    driven = Driven(ONE_GPU)
    driven.at(0, foreign("x", "a"), lone("p"))
    assert driven.holds()["p"].reason is Reason.NO_NODE_FITS
    for now_ms in (1, 10 * TELL_AGAIN_MS):
        driven.at(now_ms, ev.PodRemoved("x"), foreign("x", "a"))
        assert driven.holds() == {}


def test_new_numbers_are_reported_after_a_while_only() -> None:
    driven = Driven(ONE_GPU)
    driven.at(0, foreign("x", "a"), lone("p"))
    more = [ev.NodeChanged(gpu_node("b", 1)), foreign("y", "b")]
    driven.at(TELL_AGAIN_MS - 1, *more)
    assert driven.holds() == {}
    driven.at(TELL_AGAIN_MS, ev.PodRemoved("y"), foreign("y", "b"))
    assert driven.holds()["p"].total_nodes == 2


def test_another_reason_is_reported_at_once() -> None:
    driven = Driven(ONE_GPU)
    driven.at(0, lone("p", queue="research"))
    assert driven.holds()["p"].reason is Reason.QUEUE_MISSING
    driven.at(1, lone("p", 2))
    assert driven.holds()["p"].when is When.NEVER
    driven.at(2, ev.NodeChanged(gpu_node("a", 2)), foreign("x", "a"))
    assert driven.holds()["p"].when is When.NOT_YET


def test_a_pod_that_was_placed_and_waits_again_gets_a_reason_again() -> None:
    driven = Driven(ONE_GPU)
    driven.at(0, foreign("x", "a"), lone("p"))
    assert driven.at(1, ev.PodRemoved("x"), bind=False) == {"p": "a"}
    driven.at(2, ev.BindFailed("p", "a", "conflict", 2), foreign("x", "a"))
    assert driven.holds().keys() == {"p"}


def test_a_member_that_comes_later_gets_the_reason_too() -> None:
    driven = Driven(ONE_GPU)
    driven.at(0, gang(pods=3), *members(1))
    driven.at(1, *members(1, first=1))
    assert driven.holds().keys() == {"g1"}


def test_every_hold_names_what_the_pod_or_its_gang_lacks() -> None:
    bad = Problem("metadata.annotations[x]", "1.5", "must be whole; nearest valid value: 2")
    reasons = {
        "invalid": (lone("invalid", problem=bad), Reason.INVALID, When.NEVER, str(bad)),
        "gated": (lone("gated", gated=True), Reason.GATED, When.NOT_YET, ""),
        "leaving": (lone("leaving", deleting=True), Reason.DELETING, When.NEVER, ""),
        "stray": (lone("stray", gang="nowhere"), Reason.GANG_MISSING, When.NOT_YET, "'nowhere'"),
        "queued": (lone("queued", queue="nowhere"), Reason.QUEUE_MISSING, When.NOT_YET, "'nowhere'"),
        "claims": (lone("claims", claims=("c",)), Reason.CLAIM_MISSING, When.NOT_YET, "'c'"),
    }
    driven = Driven(gpu_node("a", 9))
    assert driven.at(0, *(event for event, *_ in reasons.values())) == {}
    for uid, (_, reason, when, detail) in reasons.items():
        refusal = driven.holds()[uid]
        assert (refusal.reason, refusal.when) == (reason, when)
        assert detail in refusal.detail


def test_a_pod_waits_for_its_queue_and_no_queue_or_the_default_one_is_no_reason_to_wait() -> None:
    driven = Driven(gpu_node("a", 9))
    pods = [lone("p", queue="team"), lone("q"), lone("r", queue="default")]
    assert driven.at(0, *pods).keys() == {"q", "r"}
    assert driven.at(1, ev.QueueChanged(Queue("other"))) == {}
    assert driven.at(2, ev.QueueChanged(Queue("team"))).keys() == {"p"}


def test_without_nodes_a_pod_waits_for_one() -> None:
    driven = Driven()
    driven.at(0, lone("p"))
    assert (driven.holds()["p"].reason, driven.holds()["p"].when) == (Reason.NO_NODES, When.NOT_YET)
    assert driven.at(1, ev.NodeChanged(ONE_GPU)).keys() == {"p"}


# A bind that fails.


def test_a_node_that_refused_a_pod_is_avoided_until_it_may_be_tried_again() -> None:
    driven = Driven(gpu_node("a", 1), gpu_node("b", 2))
    assert driven.at(0, lone("p"), bind=False) == {"p": "a"}
    assert driven.at(1, ev.BindFailed("p", "a", "conflict", 5000), bind=False) == {"p": "b"}
    assert driven.at(2, ev.BindFailed("p", "b", "conflict", 7000)) == {}
    assert {count.reason for count in driven.holds()["p"].nodes} == {Reason.BIND_BACKOFF}
    assert driven.state.next_wake_ms() == 5000
    assert driven.at(4999) == {}
    assert driven.at(5000) == {"p": "a"}


def test_a_pod_that_failed_for_itself_waits_everywhere() -> None:
    driven = Driven(gpu_node("a", 1), gpu_node("b", 1))
    driven.at(0, lone("p"), bind=False)
    assert driven.at(1, ev.BindFailed("p", "", "webhook", 5000), ev.NodeChanged(gpu_node("c", 1))) == {}
    assert driven.holds()["p"].reason is Reason.BIND_BACKOFF
    assert driven.at(5000).keys() == {"p"}


def test_a_failure_that_is_reported_twice_or_too_late_changes_nothing() -> None:
    driven = Driven(gpu_node("a", 2))
    driven.at(0, lone("p"))
    failed = ev.BindFailed("p", "a", "late", 10)
    assert driven.at(1, failed, failed, ev.BindFailed("nobody", "a", "?", 10)) == {}
    assert not driven.state.busy


def test_a_clock_that_goes_back_stands_still() -> None:
    driven = Driven(ONE_GPU)
    driven.at(100_000, lone("p"), bind=False)
    assert driven.at(50_000, ev.BindFailed("p", "a", "conflict", 101_000)) == {}
    assert driven.state.now_ms == 100_000
    assert driven.at(0) == {}
    assert driven.at(101_000).keys() == {"p"}


# Odd worlds.


def test_a_node_without_anything_to_give_takes_nothing() -> None:
    driven = Driven(Node("bare"))
    driven.at(0, ev.PodChanged(Pod("p", "ns", "p", Request())))
    [count] = driven.holds()["p"].nodes
    assert (count.reason, count.when) == (Reason.TOO_MANY_PODS, When.NEVER)


def test_where_others_hold_more_than_a_node_has_only_what_is_short_is_refused() -> None:
    node = Node("a", ((CPU, 1000), (GPU, 2), (PODS, 9)))
    driven = Driven(node)
    greedy = Request(((CPU, 3000), (GPU, 1)))
    driven.apply_events(ev.PodChanged(Pod("x", "ns", "x", greedy, node="a", managed=False)))
    cpu = Pod("cpu", "ns", "cpu", Request(((CPU, 1),)))
    assert driven.at(0, lone("p"), ev.PodChanged(cpu)).keys() == {"p"}
    assert "-2" in str(driven.holds()["cpu"])


def test_a_pod_on_a_node_that_is_reported_later_holds_its_room_there() -> None:
    driven = Driven()
    driven.apply_events(foreign("x", "a"))
    assert driven.at(0, ev.NodeChanged(ONE_GPU), lone("p")) == {}
    assert driven.at(1, ev.PodRemoved("x")) == {"p": "a"}


def test_a_node_that_comes_back_still_holds_its_pods() -> None:
    driven = Driven(ONE_GPU)
    driven.at(0, lone("p"))
    driven.at(1, ev.NodeRemoved("a"), lone("q"))
    assert driven.holds()["q"].reason is Reason.NO_NODES
    assert driven.at(2, ev.NodeChanged(ONE_GPU)) == {}
    assert driven.at(3, ev.PodRemoved("p")) == {"q": "a"}


def test_a_new_node_in_the_place_of_one_that_is_gone_starts_empty() -> None:
    driven = Driven(gpu_node("a", 2, "z", "r"))
    driven.at(0, lone("p"))
    driven.at(1, ev.NodeRemoved("a"), ev.PodRemoved("p"), ev.NodeChanged(gpu_node("b", 1)))
    assert driven.at(2, lone("q"), gang(pods=1, required=(RACK,)), *members(1)) == {"q": "b"}


def test_an_event_reported_twice_or_for_something_unknown_changes_nothing() -> None:
    driven = Driven(ONE_GPU)
    driven.at(0, lone("p"))
    before = repr(driven.state.cluster.nodes.free.tolist())
    again = [
        event for event in (ev.NodeChanged(ONE_GPU), ev.PodChanged(driven.state.workloads.pods["p"])) for _ in "12"
    ]
    gone: list[ev.Event] = [
        ev.NodeRemoved("?"), ev.PodRemoved("?"), ev.GangRemoved("?"), ev.NamespaceRemoved("?"), ev.VolumeRemoved("?"),
        ev.VolumeClaimRemoved("?"), ev.StorageClassRemoved("?"),
    ]  # fmt: skip
    assert driven.at(1, *again, *gone) == {}
    assert repr(driven.state.cluster.nodes.free.tolist()) == before


def test_preferences_far_beyond_all_others_still_leave_a_node_feasible() -> None:
    many = [PeerTerm(LabelSelector(), frozenset((f"ns{i}", "ns")), RACK) for i in range(20)]
    request = Request(preferred_peers=tuple(PreferredPeers(-100, term) for term in many))
    node = replace(gpu_node("a", 1, rack="r"), taints=tuple(Taint(f"t{i}", "", "PreferNoSchedule") for i in range(9)))
    driven = Driven(node)
    driven.at(0, ev.PodChanged(Pod("x", "ns", "x", Request(), node="a")))
    assert driven.at(1, ev.PodChanged(Pod("p", "ns", "p", request))) == {"p": "a"}


# What must make no difference.


def scenario(name: Callable[[int], str], seed: int = 1) -> tuple[list[str], list[list[Decision]]]:
    """A busy hour on twelve nodes called `name(i)`: the names, and the decisions of every step."""
    dice = random.Random(seed)
    names = [name(i) for i in range(12)]
    state = State(Policy(fabric=FABRIC))
    reported: list[ev.Event] = [ev.NamespaceChanged(Namespace("ns", (("team", "x"),)))]
    for i, node in enumerate(names):
        labels = (("kubernetes.io/hostname", node), (RACK, f"r{i % 4}"), ("zone", f"z{i % 2}"))
        amounts = ((CPU, 8000), (GPU, dice.choice([2, 4, 8])), (PODS, 20))
        reported.append(ev.NodeChanged(Node(node, amounts, labels)))
    steps: list[list[Decision]] = []
    for now_ms in range(0, 3_600_000, 60_000):
        for i in range(dice.randint(1, 4)):
            uid = f"p{now_ms}-{i}"
            reported.append(ev.PodChanged(Pod(uid, "ns", uid, any_request(dice), (("app", "web"),), created_ms=now_ms)))
        if dice.random() < 0.5:
            levels: list[tuple[str, ...]] = [(), (RACK,)]
            reported += [
                gang(f"g{now_ms}", 3, required=dice.choice(levels)),
                *members(3, f"g{now_ms}", created_ms=now_ms),
            ]
        steps.append(step(state, reported, now_ms))
        reported = [
            ev.PodRemoved(uid) for uid in dice.sample(sorted(state.workloads.pods), k=len(state.workloads.pods) // 5)
        ]
    return names, steps


def any_request(dice: random.Random) -> Request:
    apart = PeerTerm(LabelSelector(), frozenset(("ns",)), "kubernetes.io/hostname")
    return dice.choice(
        [
            Request(((CPU, 500), (GPU, 1))),
            Request(((CPU, 1000), (GPU, 2))),
            Request(((CPU, 250),), gpu_milli=300),
            Request(((CPU, 250),), ports=(HostPort("", "TCP", 80),)),
            Request(((CPU, 250),), anti_affinity=(apart,)),
            Request(((GPU, 1),), preferred_peers=(PreferredPeers(50, apart),)),
        ]
    )


def slots(names: list[str], steps: list[list[Decision]]) -> list[tuple[str, int]]:
    return [(d.uid, names.index(d.node)) for decisions in steps for d in decisions if isinstance(d, Bind)]


def test_the_names_of_nodes_do_not_matter() -> None:
    first = slots(*scenario(lambda i: f"node-{i:02}"))
    assert len(first) > 60
    assert slots(*scenario(lambda i: f"node-{97 - i:02}")) == first
    assert slots(*scenario(lambda i: hashlib.sha256(bytes([i])).hexdigest())) == first


def digest() -> str:
    return hashlib.sha256(repr(scenario(lambda i: f"n{i}")).encode()).hexdigest()


@pytest.mark.slow
def test_the_same_events_lead_to_the_same_decisions_in_every_process() -> None:
    command = [sys.executable, "-c", "from tests.core.test_cycle import digest; print(digest())"]
    runs = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True)
        for seed in ("1", "4242")
    ]
    assert {run.stdout.strip() for run in runs} == {digest()}


def test_the_order_in_which_unrelated_objects_are_reported_does_not_matter() -> None:
    def decided(order: int) -> list[tuple[str, str]]:
        events: list[ev.Event] = [*members(3), gang(pods=3), foreign("x", "b"), ev.NamespaceChanged(Namespace("ns"))]
        random.Random(order).shuffle(events)
        driven = Driven()
        nodes = [ev.NodeChanged(gpu_node(name, 2)) for name in "abc"]
        return sorted(driven.at(0, *nodes, *events).items())

    assert len({tuple(decided(order)) for order in range(20)}) == 1
