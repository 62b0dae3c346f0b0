# SPDX-License-Identifier: Apache-2.0
"""Moves that make room for a job or a shape: in order, with what they lose, and why there are none."""

from __future__ import annotations

import pytest

from dovetail.core.model import Gang, LabelSelector, Pod, Requirement
from dovetail.core.queues.types import Budget
from dovetail.core.state import State
from dovetail.views.defrag import for_job, for_shape
from dovetail.views.defrag_types import Defrag
from dovetail.views.free_types import Beside
from dovetail.views.names import JobNotFound
from dovetail.views.shape_types import ShapeError, parse
from tests.views.queued import HOUR, MINUTE, NOW, node, pod, queue, state_of

OWNED = "Job/x"


def _split(*more: object) -> State:
    """Three nodes with 2, 4 and 4 GPUs free; what runs on the first lost least so far."""
    return state_of(
        node("a"), node("b"), node("c"),
        pod("x", 4, "a", since_ms=10 * MINUTE, owner=OWNED), pod("y", 2, "a", since_ms=HOUR, owner=OWNED),
        pod("u", 4, "b", since_ms=3 * HOUR, owner=OWNED), pod("v", 4, "c", since_ms=HOUR, owner=OWNED),
        *more,
    )  # fmt: skip


def _moves(found: Defrag) -> list[tuple[str, str, str, float]]:
    return [(m.pod, m.source, m.target, step.lost_gpu_minutes) for step in found.steps for m in step.moves]


def test_the_moves_that_lose_least_make_room_for_a_job() -> None:
    state = _split(pod("p", 8))
    before = dict(state.cluster.placements)
    found = for_job(state, "ns/p")
    assert (found.job, found.room, found.shape) == ("ns/p", True, None)
    assert [(pod, source) for pod, source, _, _ in _moves(found)] == [("ns/x", "a"), ("ns/y", "a")]
    assert found.lost_gpu_minutes == 4 * 10 + 2 * 60 == sum(step.lost_gpu_minutes for step in found.steps)
    assert [(place.pod, place.node) for place in found.places] == [("ns/p", "a")]
    assert found.notes == ()
    assert state.cluster.placements == before and state.cluster.check() == []


def test_a_gang_moves_in_one_step() -> None:
    state = state_of(
        node("a"), node("b"), node("c"), Gang("g", "ns", "train", 2),
        pod("g0", 3, "a", since_ms=HOUR, gang="g", owner=OWNED),
        pod("g1", 3, "b", since_ms=HOUR, gang="g", owner=OWNED),
        pod("w", 1, "c", since_ms=HOUR, preemptible=False), pod("p", 8),
    )  # fmt: skip
    (step,) = for_job(state, "ns/p").steps
    assert (step.job, step.queue, step.lost_gpu_minutes) == ("ns/train", "default", 360)
    assert {move.pod for move in step.moves} == {"ns/g0", "ns/g1"}


def test_what_fits_as_it_is_needs_no_moves() -> None:
    found = for_job(_split(pod("p", 4)), "ns/p")
    assert (found.room, found.steps, found.lost_gpu_minutes) == (True, (), 0)
    assert len(found.places) == 1


def test_a_pod_without_a_controller_has_to_be_made_anew_by_hand() -> None:
    state = state_of(node("a"), node("b"), pod("x", 4, "a"), pod("y", 6, "b", since_ms=HOUR), pod("p", 4), pod("q", 2))
    found = for_shape(state, parse("6"), Beside())
    assert _moves(found) == []
    found = for_shape(state_of(node("a"), node("b"), pod("x", 4, "a"), pod("y", 4, "b")), parse("8"), Beside())
    assert found.notes == ("ns/x has no controller: create it again by hand after its eviction",)


def test_others_that_may_take_the_room_are_reported() -> None:
    first = pod("first", 8, waits_ms=2 * HOUR)
    found = for_job(_split(first, pod("p", 8)), "ns/p")
    assert found.notes == ("a job before it in queue order may take the room: dovetail priority ns/p",)
    assert for_job(_split(first, pod("p", 8)), "ns/first").notes == ()
    assert "waiting jobs" in for_shape(_split(first), parse("8"), Beside()).notes[-1]


def test_a_limit_that_keeps_it_waiting_all_the_same_is_reported() -> None:
    (note,) = for_job(_split(queue("q", limit=4), pod("p", 8, queue="q")), "ns/p").notes
    assert note.startswith("the job also waits for its queue: the queue would go beyond its limit: 'q' would hold 8")


def test_too_little_is_free_in_all_and_that_is_proven() -> None:
    found = for_job(_split(pod("p", 8), pod("q", 8, waits_ms=1), Gang("g", "ns", "big", 2), *_gang(2, 8)), "ns/big")
    assert (found.room, found.proven, found.steps) == (False, True, ())
    assert found.why == "it needs 16 of nvidia.com/gpu, and the cluster has 10 free"


def test_a_pod_that_must_not_be_moved_stays_and_that_is_proven() -> None:
    state = state_of(
        node("a"), node("b"), pod("x", 4, "a", preemptible=False), pod("y", 4, "b", labels=(("app", "y"),)),
        Budget("ns", "y", LabelSelector((Requirement("app", "In", ("y",)),)), 0), pod("p", 8),
    )  # fmt: skip
    found = for_job(state, "ns/p")
    assert (found.room, found.proven) == (False, True)
    assert found.why == "it would not fit even if all 0 movable pods were gone"


def test_those_in_the_way_find_no_other_room_and_that_is_not_proven() -> None:
    state = state_of(
        node("a"), node("b"), node("c"),
        pod("x", 5, "a"), pod("y", 5, "b"), pod("z", 5, "c"), pod("p", 8),
    )  # fmt: skip
    found = for_job(state, "ns/p")
    assert (found.room, found.proven, found.why) == (False, False, "the pods in its way fit nowhere else")


def test_what_keeps_a_job_from_being_tried_is_reported_instead() -> None:
    found = for_job(_split(pod("p", 8, queue="nowhere")), "ns/p")
    assert (found.room, found.proven) == (False, True)
    assert found.why == "the queue that the pod names does not exist: 'nowhere'"
    found = for_job(_split(Gang("g", "ns", "big", 2), *_gang(1, 8)), "ns/big")
    assert found.why == "fewer pods exist than the gang needs to start"


def test_of_a_gang_that_runs_the_pod_that_is_missing_gets_room() -> None:
    running = pod("g0", 2, "c", since_ms=HOUR, gang="g", owner=OWNED)
    late = pod("g1", 8, gang="g", waits_ms=MINUTE)
    found = for_job(_split(Gang("g", "ns", "grows", 1), running, late), "ns/grows")
    assert found.room and found.steps
    assert [place.pod for place in found.places] == ["ns/g1"]


def test_a_shape_of_several_pods_and_of_a_model() -> None:
    found = for_shape(_split(), parse("1x8xh100"), Beside())
    assert found.job == "" and found.shape == parse("8xh100")
    assert [(one[0], one[1]) for one in _moves(found)] == [("ns/x", "a"), ("ns/y", "a")]
    assert [place.pod for place in found.places] == ["pod 1"]
    assert for_shape(_split(), parse("2x4"), Beside()).steps == ()
    with pytest.raises(ShapeError, match="there are NVIDIA-H100"):
        for_shape(_split(), parse("8xA100"), Beside())


def test_what_goes_with_each_gpu_of_a_shape_counts() -> None:
    assert for_shape(_split(), parse("8"), Beside(cpu_milli=8000)).room
    found = for_shape(_split(), parse("8"), Beside(cpu_milli=8001))
    assert (found.room, found.proven) == (False, True)


def test_a_job_that_does_not_wait_gets_an_error() -> None:
    with pytest.raises(JobNotFound, match="ns/x does not wait: it has a node"):
        for_job(_split(), "ns/x")
    with pytest.raises(JobNotFound, match="did you mean ns/x"):
        for_job(_split(), "ns/xx")


def _gang(pods: int, gpus: int) -> list[Pod]:
    return [pod(f"g{i}", gpus, gang="g") for i in range(pods)]


def test_the_time_that_was_lost_ends_at_the_last_checkpoint() -> None:
    state = state_of(node("a"), node("b"), pod("x", 4, "a", since_ms=HOUR, checkpoint_ms=NOW - MINUTE, owner=OWNED),
                     pod("y", 4, "b", since_ms=HOUR, owner=OWNED), pod("p", 8))  # fmt: skip
    assert _moves(for_job(state, "ns/p")) == [("ns/x", "a", "b", 4.0)]
