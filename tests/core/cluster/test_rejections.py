# SPDX-License-Identifier: Apache-2.0
"""A node whose kubelet rejects pods is left alone by their owner's next ones: three fail there at most."""

from __future__ import annotations

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Hold
from dovetail.core.event_handlers import apply
from dovetail.core.model import GPU, PODS, Node, Pod, Request
from dovetail.core.reasons import Reason
from dovetail.core.state import State

MINUTE_MS = 60_000
REJECTED = "TopologyAffinityError"


def node(name: str, gpus: int = 8) -> ev.Event:
    return ev.NodeChanged(Node(name, ((GPU, gpus), (PODS, 50))))


def pod(uid: str, owner: str = "job") -> ev.Event:
    return ev.PodChanged(Pod(uid, "ns", uid, Request(((GPU, 1),)), owner=owner))


def placed(state: State, now_ms: int, *reported: ev.Event) -> list[str]:
    decisions = step(state, reported, now_ms)
    assert state.cluster.check() == []
    return [d.node for d in decisions if isinstance(d, Bind)]


def rejected(uid: str, name: str = "a", reason: str = REJECTED) -> tuple[ev.Event, ev.Event]:
    return ev.PodRejected("job", name, reason), ev.PodRemoved(uid)


def test_the_next_pod_of_the_owner_goes_elsewhere_and_others_do_not_care() -> None:
    state = State()
    assert placed(state, 0, node("a"), node("b"), pod("p0")) == ["a"]
    assert placed(state, 10, *rejected("p0"), pod("p1")) == ["b"]
    assert placed(state, 20, ev.NodeRemoved("b"), pod("p2"), pod("x", "another"), pod("y", "")) == ["a", "a"]
    assert placed(state, 10 + MINUTE_MS) == ["a"]


def test_at_most_three_pods_fail_on_one_node() -> None:
    state, now_ms, failed = State(), 0, 0
    placed(state, now_ms, node("a"))
    waiting = "p0"
    decided = placed(state, now_ms, pod(waiting))
    for number in range(1, 40):
        if decided:
            failed += 1
            events = [*rejected(waiting), pod(f"p{number}")]
            waiting = f"p{number}"
        else:
            events = []
        now_ms += 5 * MINUTE_MS
        decided = placed(state, now_ms, *events)
    assert failed == 3
    assert state.next_wake_ms() is None
    assert placed(state, now_ms, node("a", gpus=4)) == ["a"]


def test_workloads_are_tried_again_when_a_back_off_ends() -> None:
    state = State()
    placed(state, 0, node("a"), pod("p0"))
    [hold] = step(state, [*rejected("p0"), pod("p1")], 5)
    assert isinstance(hold, Hold)
    assert hold.refusal.nodes[0].reason is Reason.REJECTED
    assert state.next_wake_ms() == 5 + MINUTE_MS
    assert placed(state, 4 + MINUTE_MS) == []
    assert placed(state, 5 + MINUTE_MS) == ["a"]


def test_a_back_off_begins_at_the_time_of_the_step_that_gets_the_event() -> None:
    state, now_ms = State(), 10**12
    assert placed(state, now_ms, node("a"), *rejected("p0"), pod("p1")) == []
    assert placed(state, now_ms + MINUTE_MS) == ["a"]


def test_reasons_count_apart() -> None:
    state = State()
    placed(state, 0, node("a"))
    for number, reason in enumerate(("one", "two", "three", "four")):
        for event in rejected(f"p{number}", reason=reason):
            apply(state, event)
    assert placed(state, MINUTE_MS + 1, pod("p")) == ["a"]


def test_rejections_survive_a_checkpoint() -> None:
    state = State()
    placed(state, 0, node("a"), pod("p0"))
    step(state, rejected("p0"), 5)
    again = restore(state.policy, take(state))
    assert placed(again, 10, pod("p1")) == []
    assert placed(again, 5 + MINUTE_MS, pod("p1")) == ["a"]


def test_a_node_that_is_gone_is_forgotten() -> None:
    state = State()
    placed(state, 0, node("a"), pod("p0"))
    step(state, [*rejected("p0"), ev.NodeRemoved("a")], 5)
    assert list(state.cluster.rejections) == []
