# SPDX-License-Identifier: Apache-2.0
"""The waiting jobs: in the order of the next step, with reasons and starts."""

from __future__ import annotations

import pytest

from dovetail.core.model import Gang
from dovetail.core.reasons import Sure
from dovetail.views.names import JobNotFound
from dovetail.views.queue_positions import queue_positions
from dovetail.views.queue_types import QueuePosition
from tests.views.queued import HOUR, NOW, node, pod, queue, state_of


def _jobs(found: QueuePosition) -> list[tuple[int, str, str]]:
    return [(one.position, one.job, one.code) for one in found.jobs]


def test_the_positions_are_those_of_the_next_step() -> None:
    state = state_of(
        node("a"), pod("x", 8, "a", runs_ms=HOUR),
        pod("young", 8, waits_ms=1), pod("old", 8), pod("high", 8, priority=5),
    )  # fmt: skip
    found = queue_positions(state, NOW)
    assert [job for _, job, _ in _jobs(found)] == ["ns/high", "ns/old", "ns/young"]
    assert [one.priority for one in found.jobs] == [5, 0, 0]


def test_each_has_its_reason_and_its_start() -> None:
    gang = Gang("g", "ns", "train", min_count=2)
    state = state_of(
        node("a"), pod("x", 6, "a", runs_ms=HOUR), gang, pod("g0", 4, gang="g"), pod("g1", 4, gang="g"),
        pod("small", 1, runs_ms=HOUR // 2, waits_ms=1),
    )  # fmt: skip
    train, small = queue_positions(state, NOW).jobs
    assert (train.job, train.pods, train.gpus_milli, train.code) == ("ns/train", 2, 8000, "GangDoesNotFit")
    assert (train.expected.sure, train.expected.start_ms) == (Sure.KNOWN, NOW + HOUR)
    assert (small.code, small.expected.start_ms, small.places[0].node) == ("Placed", NOW, "a")


def test_a_queue_shows_those_below_it_with_their_places_in_the_whole_order() -> None:
    state = state_of(
        node("a"), pod("x", 8, "a"), queue("org"), queue("team", parent="org"), pod("p", 1, queue="default"),
        pod("q", 1, queue="team"),
    )  # fmt: skip
    (own,) = queue_positions(state, NOW, "org").jobs
    (every,) = [one for one in queue_positions(state, NOW).jobs if one.job == "ns/q"]
    assert own == every
    assert (own.queue, own.job) == ("team", "ns/q")


def test_a_queue_that_does_not_exist_names_those_that_come_near() -> None:
    with pytest.raises(JobNotFound, match="did you mean research"):
        queue_positions(state_of(queue("research")), NOW, "reserch")


def test_jobs_of_no_queue_are_in_the_order_too() -> None:
    (job,) = queue_positions(state_of(node("a"), pod("p", 1, queue="gone")), NOW).jobs
    assert (job.queue, job.code) == ("gone", "QueueMissing")


def test_pods_of_other_schedulers_do_not_wait_for_us() -> None:
    assert queue_positions(state_of(node("a"), pod("p", 1, managed=False)), NOW).jobs == ()
