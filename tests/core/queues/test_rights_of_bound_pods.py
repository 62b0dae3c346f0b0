# SPDX-License-Identifier: Apache-2.0
"""For which queue a pod counts that is bound: the one it was placed for, or one that it may use, or `default`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.model import LabelSelector, Namespace, Node, Requirement
from dovetail.core.queues.types import GPU, Queue
from dovetail.core.reasons import Reason
from dovetail.core.state import State
from tests.core.driven import POLICY, Driven, gang, members
from tests.core.gang_oracle import gpu_pod

NODE = Node("n", (("cpu", 64_000), ("nvidia.com/gpu", 8), ("pods", 110)))
OPEN = Queue("open")
CLOSED = Queue("closed", namespaces=("theirs",))
BY_LABEL = Queue("labelled", namespace_selector=LabelSelector((Requirement("team", "In", ("a",)),)))
PARENT, CHILD = Queue("parent"), Queue("child", parent="parent")


def driven(*queues: Queue) -> Driven:
    found = Driven(NODE)
    found.at(1, *(ev.QueueChanged(queue) for queue in queues))
    return found


def bound(queue: str, *, recorded: bool, uid: str = "a") -> ev.Event:
    return ev.PodChanged(gpu_pod(uid, 2, node="n", queue=queue, recorded=recorded))


def holding(state: State) -> dict[str, int]:
    """GPUs by queue, of those that hold some."""
    found = {name: held.get(GPU, 0) // 1000 for name, held in state.shares.totals.allocated.items()}
    return {name: gpus for name, gpus in found.items() if gpus}


@pytest.mark.parametrize(
    ("queue", "recorded", "counts"),
    [
        ("open", False, "open"),
        ("nosuch", False, "default"),
        ("nosuch", True, "default"),
        ("closed", False, "default"),
        ("closed", True, "closed"),
        ("labelled", False, "default"),
        ("labelled", True, "labelled"),
        ("parent", False, "default"),
        ("", False, "default"),
    ],
)
def test_which_queue_is_charged(queue: str, recorded: bool, counts: str) -> None:
    found = driven(OPEN, CLOSED, BY_LABEL, PARENT, CHILD)
    found.at(2, bound(queue, recorded=recorded))
    assert holding(found.state) == {counts: 2}
    # Whichever comes first, queue or pod.
    other = Driven(NODE)
    other.at(1, bound(queue, recorded=recorded))
    other.at(2, *(ev.QueueChanged(one) for one in (OPEN, CLOSED, BY_LABEL, PARENT, CHILD)))
    assert holding(other.state) == {counts: 2}
    assert holding(restore(POLICY, take(other.state))) == {counts: 2}


def test_the_queue_of_a_pod_is_deleted_and_comes_back() -> None:
    found = driven(OPEN)
    found.at(2, bound("open", recorded=True))
    found.at(3, ev.QueueRemoved("open"))
    assert holding(found.state) == {"default": 2}
    assert found.state.shares.accounts.of("default").rate > 0
    found.at(4, ev.QueueChanged(OPEN))
    assert holding(found.state) == {"open": 2}
    assert found.state.shares.accounts.of("default").rate == 0


def test_what_a_namespace_may_use_counts_for_pods_that_nobody_placed_as_it_is_now() -> None:
    found = driven(BY_LABEL)
    found.at(2, bound("labelled", recorded=False), bound("labelled", recorded=True, uid="b"))
    assert holding(found.state) == {"default": 2, "labelled": 2}
    found.at(3, ev.NamespaceChanged(Namespace("ns", (("team", "a"),))))
    assert holding(found.state) == {"labelled": 4}
    found.at(4, ev.NamespaceChanged(Namespace("ns", (("team", "b"),))))
    assert holding(found.state) == {"default": 2, "labelled": 2}
    found.at(5, ev.QueueChanged(replace(BY_LABEL, namespace_selector=None)))
    assert holding(found.state) == {"labelled": 4}
    found.at(6, ev.QueueChanged(replace(BY_LABEL, namespaces=("theirs",), namespace_selector=None)))
    assert holding(found.state) == {"default": 2, "labelled": 2}


def test_the_default_queue_of_a_namespace_moves_no_pod_that_was_placed() -> None:
    found = driven(OPEN, Queue("other"))
    found.at(2, ev.NamespaceChanged(Namespace("ns", (("dovetail.dev/queue", "open"),))))
    found.at(3, bound("open", recorded=True))
    found.at(4, ev.NamespaceChanged(Namespace("ns", (("dovetail.dev/queue", "other"),))))
    assert holding(found.state) == {"open": 2}


def test_a_gang_that_runs_in_one_queue_does_not_grow_in_another() -> None:
    """Limits, guarantees and victims are those of the queue of its first pod."""
    found = driven(Queue("wide"), Queue("narrow", limit=((GPU, 1000),)))
    found.at(2, gang(pods=1), *members(1, queue="wide"))
    assert holding(found.state) == {"wide": 1}
    found.at(3, *members(3, first=1, queue="narrow"))
    assert found.holds()["g1"].reason is Reason.QUEUES_MIXED
    assert "'narrow', and 'wide' for those of its pods that run" in found.holds()["g1"].detail
    found.at(4, *members(1, first=9, queue="wide"), *(ev.PodRemoved(f"g{i}") for i in range(1, 4)))
    assert holding(found.state) == {"wide": 2}


def test_pods_of_an_unknown_queue_are_preemptible() -> None:
    """Also of what was never recorded: it counts for `default`, and gives back what is guaranteed to others."""
    found = driven(Queue("red", guarantee=((GPU, 8_000),)))
    for number in range(4):
        found.at(2, bound("nosuch", recorded=False, uid=f"v{number}"))
    found.at(100_000_000, ev.PodChanged(gpu_pod("mine", 2, queue="red")))
    evicted = [uid for decision in found.last for uid in getattr(decision, "uids", ()) if uid.startswith("v")]
    assert len(evicted) == 1
