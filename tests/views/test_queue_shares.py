# SPDX-License-Identifier: Apache-2.0
"""The status of queues: amounts, usage by days, credit, users, the first job."""

from __future__ import annotations

import pytest

from dovetail.views.names import JobNotFound
from dovetail.views.queue_shares import share
from dovetail.views.queue_types import QueueShare
from tests.views.queued import DAY, HOUR, NOW, node, pod, queue, state_of, used

TODAY = NOW // DAY
GPU_DAY = 1000 * DAY


def _by_name(found: tuple[QueueShare, ...]) -> dict[str, QueueShare]:
    return {one.queue: one for one in found}


def test_the_tree_is_reported_from_the_top_with_depths() -> None:
    state = state_of(queue("org"), queue("a", parent="org"), queue("b", parent="org"), queue("c"))
    assert [(one.queue, one.depth, one.leaf) for one in share(state, NOW) if one.queue != "default"] == [
        ("org", 0, False), ("a", 1, True), ("b", 1, True), ("c", 0, True),
    ]  # fmt: skip
    assert [(one.queue, one.depth) for one in share(state, NOW, "org")] == [("org", 0), ("a", 1), ("b", 1)]
    assert [(one.queue, one.depth) for one in share(state, NOW, "b")] == [("b", 0)]


def test_what_is_held_beyond_the_guarantee_is_borrowed() -> None:
    state = state_of(
        node("a"), node("b"), queue("q", guarantee=4, limit=12), pod("x", 6, "a", queue="q"), pod("p", 8, queue="q")
    )
    own = _by_name(share(state, NOW))["q"]
    gpu = {name: dict(getattr(own, name)).get("gpu", 0) for name in ("guarantee", "limit", "allocated", "borrowed")}
    assert gpu == {"guarantee": 4000, "limit": 12000, "allocated": 6000, "borrowed": 2000}
    assert (dict(own.pending)["gpu"], own.pending_jobs, own.head) == (8000, 1, "ns/p")
    assert own.charged_milli == 6000


def test_usage_of_today_of_seven_days_and_of_thirty() -> None:
    days = ((TODAY - 29, 4 * GPU_DAY), (TODAY - 6, 2 * GPU_DAY), (TODAY, GPU_DAY))
    state = state_of(node("a"), queue("q", usage=used(10, days=days)))
    own = _by_name(share(state, NOW))["q"]
    assert (own.gpu_hours_1d, own.gpu_hours_7d, own.gpu_hours_30d) == (24, 72, 168)
    assert own.gpu_hours == 10


def test_credit_is_what_is_due_by_weight_less_what_was_used() -> None:
    state = state_of(node("a"), queue("rich", usage=used(0)), queue("poor", usage=used(2000)))
    found = _by_name(share(state, NOW))
    assert found["rich"].credit_gpu_hours > 0 > found["poor"].credit_gpu_hours
    assert found["rich"].credit_gpu_hours - found["poor"].credit_gpu_hours == pytest.approx(2000, abs=0.01)


def test_users_are_reported_with_their_part_most_first() -> None:
    usage = used(4, users=(("ada", 3000 * HOUR), ("bob", 1000 * HOUR)))
    own = _by_name(share(state_of(node("a"), queue("q", by_user=True, usage=usage)), NOW))["q"]
    assert [(one.user, one.gpu_hours, one.part_ppm) for one in own.users] == [("ada", 3, 750_000), ("bob", 1, 250_000)]


def test_the_head_of_a_queue_that_holds_queues_is_the_first_below_it() -> None:
    state = state_of(
        node("a"), pod("x", 8, "a"), queue("org"), queue("t", parent="org"), queue("u", parent="org"),
        pod("p", 1, queue="t"), pod("q", 1, queue="u", priority=9), pod("r", 1, queue="t", priority=1),
    )  # fmt: skip
    found = _by_name(share(state, NOW))
    assert (found["t"].head, found["u"].head) == ("ns/r", "ns/q")
    assert found["org"].head in ("ns/r", "ns/q")
    assert found["default"].head == ""


def test_what_is_wrong_with_a_queue_is_reported() -> None:
    state = state_of(node("a"), queue("lost", parent="nowhere"), queue("greedy", guarantee=99))
    found = _by_name(share(state, NOW))
    assert "no queue of that name exists" in found["lost"].problem
    assert "more is guaranteed than the cluster has" in found["greedy"].problem


def test_a_queue_that_does_not_exist() -> None:
    with pytest.raises(JobNotFound, match="queue teem does not exist; did you mean team"):
        share(state_of(queue("team")), NOW, "teem")
