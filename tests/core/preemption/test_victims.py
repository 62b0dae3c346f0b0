# SPDX-License-Identifier: Apache-2.0
"""Which victim is taken: parts of a GPU where they lose less, and no job that would evict others in turn."""

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.decisions import Evict
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Node, Pod, Request, Work
from dovetail.core.queues.types import Queue
from dovetail.core.reasons import Reason
from tests.core.driven import Driven

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
GIB = 1 << 30


def node(name: str, gpus: int) -> Node:
    amounts = {CPU: 64_000, MEMORY: 512 * GIB, GPU: gpus, PODS: 110}
    return Node(name, tuple(sorted(amounts.items())))


def pod(uid: str, gpus: int = 0, milli: int = 0, **more: object) -> Pod:
    amounts = {CPU: 4000, GPU: gpus, MEMORY: 16 * GIB}
    request = Request(tuple((name, amount) for name, amount in amounts.items() if amount), gpu_milli=milli)
    return Pod(uid, "ns", uid, request, owner=f"owner-of-{uid}", **more)


def running(driven: Driven, where: str, bound_ms: int, *pods: Pod) -> None:
    driven.apply_events(
        *(ev.PodChanged(replace(one, node=where, bound_ms=bound_ms, created_ms=bound_ms)) for one in pods)
    )


def evicted(driven: Driven) -> set[str]:
    return {uid for decision in driven.last if isinstance(decision, Evict) for uid in decision.uids}


def test_a_whole_gpu_is_made_of_the_part_of_one_that_loses_less() -> None:
    driven = Driven(node("a", 2))
    driven.apply_events(ev.QueueChanged(Queue("x")))
    running(driven, "a", 1, pod("old", 1, queue="x"))
    running(driven, "a", 2 * HOUR_MS - 10_000, pod("half", milli=500, queue="x"))
    driven.at(2 * HOUR_MS, ev.PodChanged(pod("urgent", 1, priority=1, queue="x")))
    assert evicted(driven) == {"half"}


def test_all_holders_of_parts_of_a_gpu_are_evicted_together_where_that_loses_less() -> None:
    driven = Driven(node("a", 2))
    driven.apply_events(ev.QueueChanged(Queue("x")))
    running(driven, "a", 1, pod("old", 1, queue="x"))
    parts = [pod(f"part{i}", milli=300, queue="x") for i in range(3)]
    running(driven, "a", 2 * HOUR_MS - 10_000, *parts)
    driven.at(2 * HOUR_MS, ev.PodChanged(pod("urgent", 1, priority=1, queue="x")))
    assert evicted(driven) == {"part0", "part1", "part2"}


def test_a_part_that_does_not_free_its_gpu_is_left_alone() -> None:
    driven = Driven(node("a", 2))
    driven.apply_events(ev.QueueChanged(Queue("x")))
    running(driven, "a", 1, pod("old", 1, queue="x"), pod("kept", milli=300, queue="x", priority=2))
    running(driven, "a", 2 * HOUR_MS - 10_000, pod("part", milli=300, queue="x"))
    driven.at(2 * HOUR_MS, ev.PodChanged(pod("urgent", 1, priority=1, queue="x")))
    assert evicted(driven) == {"old"}


def test_parts_make_room_for_several_gpus_on_one_node() -> None:
    driven = Driven(node("a", 4))
    driven.apply_events(ev.QueueChanged(Queue("x")))
    running(driven, "a", 1, *(pod(f"old{i}", 1, queue="x") for i in range(2)))
    running(driven, "a", 2 * HOUR_MS - 10_000, *(pod(f"part{i}", milli=900, queue="x") for i in range(2)))
    driven.at(2 * HOUR_MS, ev.PodChanged(pod("urgent", 2, priority=1, queue="x")))
    assert evicted(driven) == {"part0", "part1"}


def test_the_low_priority_is_evicted_at_once_and_not_the_middle_one_which_would_evict_it() -> None:
    driven = Driven(node("a", 2))
    driven.apply_events(ev.QueueChanged(Queue("x")))
    running(driven, "a", 1, pod("low", 1, queue="x"))
    running(driven, "a", 2 * HOUR_MS - 10_000, pod("middle", 1, queue="x", priority=1))
    driven.at(2 * HOUR_MS, ev.PodChanged(pod("high", 1, priority=2, queue="x")))
    assert evicted(driven) == {"low"}


def test_a_middle_priority_that_never_preempts_is_evicted_where_it_loses_less() -> None:
    driven = Driven(node("a", 2))
    driven.apply_events(ev.QueueChanged(Queue("x")))
    running(driven, "a", 1, pod("low", 1, queue="x"))
    meek = pod("middle", 1, queue="x", priority=1, work=Work(preempts=False))
    running(driven, "a", 2 * HOUR_MS - 10_000, meek)
    driven.at(2 * HOUR_MS, ev.PodChanged(pod("high", 1, priority=2, queue="x")))
    assert evicted(driven) == {"middle"}


def test_a_job_that_never_preempts_does_not_answer_for_an_equal_one_that_may() -> None:
    driven = Driven(node("a", 1))
    driven.apply_events(ev.QueueChanged(Queue("x")))
    running(driven, "a", 1, pod("low", 1, queue="x"))
    meek = pod("meek", 1, queue="x", priority=1, created_ms=1, work=Work(preempts=False))
    driven.at(HOUR_MS, ev.PodChanged(meek))
    assert evicted(driven) == set()
    assert driven.holds()["meek"].reason is Reason.NO_NODE_FITS
    driven.at(HOUR_MS + 1, ev.PodChanged(pod("bold", 1, queue="x", priority=1, created_ms=2)))
    assert evicted(driven) == {"low"}
