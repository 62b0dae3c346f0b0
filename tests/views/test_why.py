# SPDX-License-Identifier: Apache-2.0
"""`why` on states made by hand: the answer, the numbers, and the holders of what is missing."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace

from dovetail.cli.console import Console
from dovetail.cli.why_report import show
from dovetail.core.event_handlers import apply
from dovetail.core.events import GangChanged, NodeChanged, PodChanged, PodRejected, QueueChanged
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Gang, Node, Pod, Request, Taint
from dovetail.core.policy import Policy, unhurried
from dovetail.core.queues.types import Queue
from dovetail.core.reasons import When
from dovetail.core.state import State
from dovetail.views.names import JobNotFound
from dovetail.views.why import why

AMOUNTS = ((CPU, 64_000), (MEMORY, 2**39), (GPU, 8), (PODS, 110))


def _state(*pods: Pod, gangs: tuple[Gang, ...] = ()) -> State:
    state = State(unhurried(Policy()))
    apply(state, NodeChanged(Node("a", AMOUNTS, (("dovetail.dev/rack", "r1"),))))
    apply(state, NodeChanged(Node("b", AMOUNTS, (("dovetail.dev/rack", "r2"),))))
    apply(state, NodeChanged(Node("c", AMOUNTS, taints=(Taint("maintenance", "", "NoSchedule"),))))
    for gang in gangs:
        apply(state, GangChanged(gang))
    for pod in pods:
        apply(state, PodChanged(pod))
    state.advance(1_000)
    return state


def _pod(name: str, gpus: int, node: str = "", gang: str = "", managed: bool = True, created: int = 1) -> Pod:
    request = Request(((GPU, gpus),))
    return Pod(name, "ns", name, request, node=node, gang=gang, managed=managed, created_ms=created)


def test_a_bound_pod_is_where_it_is() -> None:
    answer = why(_state(_pod("p", 1, "b")), "ns/p", 1_000)
    assert (answer.state, answer.node) == ("Bound", "b")


def test_a_pod_that_fits_has_its_next_node_and_the_jobs_ahead() -> None:
    answer = why(_state(_pod("old", 8), _pod("p", 8, created=2)), "ns/p", 1_000)
    assert (answer.state, answer.node, answer.ahead) == ("Placed", "b", 1)


def test_each_node_is_counted_once_and_holders_are_named() -> None:
    state = _state(_pod("x", 6, "a"), _pod("y", 5, "b"), _pod("p", 4, created=2))
    answer = why(state, "ns/p", 1_000)
    assert (answer.state, answer.code) == (When.NOT_YET, "NoNodeFits")
    rules = {rule.code: rule for rule in answer.rules}
    assert set(rules["InsufficientResource"].nodes) == {"a", "b"}
    assert rules["InsufficientResource"].nearest.startswith("needs 4, b has free 3; all of these nodes together have 5")
    assert (rules["TaintNotTolerated"].nodes, rules["TaintNotTolerated"].when) == (("c",), When.NEVER)
    assert [(h.pod, h.node, h.amount) for h in answer.holders] == [("ns/x", "a", "6"), ("ns/y", "b", "5")]


def test_a_held_job_requests_nothing_now_and_its_queue_is_not_in_its_way() -> None:
    state = _state(replace(_pod("p", 4), held=True, queue="x"))
    apply(state, QueueChanged(Queue("x", guarantee=((GPU, 8),))))
    answer = why(state, "ns/p", 1_000)
    assert (answer.code, answer.queue, answer.wanted) == ("Held", "x", ())
    out = io.StringIO()
    show(answer, Console(file=out), 1_000)
    assert "is held" in out.getvalue() and "requests" not in out.getvalue()


def test_never_where_every_node_refuses_for_ever() -> None:
    answer = why(_state(_pod("p", 9)), "ns/p", 1_000)
    assert (answer.state, answer.holders) == (When.NEVER, ())


def test_a_gang_reports_what_it_needs_and_what_fits() -> None:
    gang = Gang("g", "ns", "g", min_count=2, required=("dovetail.dev/rack",))
    state = _state(_pod("g0", 8, gang="g"), _pod("g1", 8, gang="g"), gangs=(gang,))
    answer = why(state, "ns/g0", 1_000)
    assert (answer.state, answer.code) == (When.NEVER, "GangTooLarge")
    assert answer.gang is not None
    assert (answer.gang.needs, answer.gang.exist, answer.gang.bound) == (2, 2, 0)
    assert "needs 2 pods in one dovetail.dev/rack, the cluster has room for 1 even when empty" in answer.message


def test_another_schedulers_pod_is_reported_to_be_that() -> None:
    answer = why(_state(_pod("p", 1, managed=False)), "ns/p", 1_000)
    assert "spec.schedulerName" in answer.message


def test_kubelets_that_rejected_pods_of_the_owner_are_distinguished_by_their_reason() -> None:
    state = _state(replace(_pod("p", 1), owner="job"))
    for node, reason in (("a", "TopologyAffinityError"), ("b", "OutOfcpu")):
        apply(state, PodRejected("job", node, reason))
    answer = why(state, "ns/p", 1_000)
    text = "node(s) whose kubelet rejected pods of the same owner"
    assert (answer.state, answer.code) == (When.NOT_YET, "NoNodeFits")
    rules = {rule.text: rule for rule in answer.rules if rule.code == "KubeletRejected"}
    assert {name: rule.nodes for name, rule in rules.items()} == {
        f"{text} (TopologyAffinityError)": ("a",),
        f"{text} (OutOfcpu)": ("b",),
    }
    assert {rule.when for rule in rules.values()} == {When.NOT_YET}


def test_gpus_are_named_where_they_were_written_down() -> None:
    named = why(_state(replace(_pod("p", 2, "b"), devices=(3, 1))), "ns/p", 1_000)
    assert (named.gpus, named.mbps, named.ideal_mbps) == ((1, 3), None, None)
    assert why(_state(_pod("p", 2, "b")), "ns/p", 1_000).gpus == ()
    assert why(_state(_pod("p", 2)), "ns/p", 1_000).gpus == ()


def test_a_pod_that_does_not_exist_names_those_that_come_near() -> None:
    with pytest.raises(JobNotFound, match="did you mean ns/train-0"):
        why(_state(_pod("train-0", 1)), "ns/train", 1_000)
