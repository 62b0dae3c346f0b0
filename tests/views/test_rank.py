# SPDX-License-Identifier: Apache-2.0
"""Why a job has its position: which term decides at which level, and what would change it."""

from __future__ import annotations

import pytest

from dovetail.core.model import Gang
from dovetail.core.state import State
from dovetail.views.names import JobNotFound
from dovetail.views.rank import rank
from dovetail.views.rank_types import Before, Overtaking
from tests.views.queued import DAY, HOUR, MINUTE, NOW, node, pod, queue, state_of, used

FULL = (node("a"), pod("full", 8, "a", namespace="other"))


def _before(state: State, key: str = "ns/p") -> Before:
    """The one that is before it."""
    (found,) = rank(state, key, NOW).before
    return found


def test_within_a_queue_priority_decides_then_age() -> None:
    state = state_of(*FULL, pod("p", 1), pod("q", 1, priority=3), pod("r", 1, waits_ms=2 * HOUR))
    found = rank(state, "ns/p", NOW)
    assert (found.position, found.waiting) == (3, 3)
    assert [(one.job, one.by) for one in found.before] == [("ns/q", "priority"), ("ns/r", "age")]
    assert found.before[0].text == "priority 3 is above 0"


def test_a_queue_within_its_guarantee_comes_first() -> None:
    state = state_of(
        *FULL, queue("mine"), queue("theirs", guarantee=4), pod("p", 4, queue="mine"), pod("q", 4, queue="theirs")
    )
    found = _before(state)
    assert (found.by, found.job) == ("standing", "ns/q")
    assert "theirs would be within its guarantee with it" in found.text


def test_among_queues_of_one_share_class_the_priority_of_the_queue_decides() -> None:
    state = state_of(
        *FULL, queue("mine", priority=1), queue("theirs", priority=2),
        pod("p", 9, queue="mine"), pod("q", 9, queue="theirs"),
    )  # fmt: skip
    assert _before(state).text == "the priority of theirs, 2, is above that of mine, 1"


def _by_usage() -> State:
    return state_of(
        *FULL,
        queue("mine", usage=used(200), half_life_ms=DAY), queue("theirs", usage=used(1000), half_life_ms=7 * DAY),
        pod("p", 9, queue="mine"), pod("q", 9, queue="theirs"),
    )  # fmt: skip


def test_then_what_was_used_by_weight_decides() -> None:
    found = _before(_by_usage())
    assert found.by == "usage"
    assert found.text.startswith("the usage / weight of theirs, ")


def test_a_queue_that_used_more_comes_before_when_that_counts_less() -> None:
    found = rank(_by_usage(), "ns/p", NOW)
    (passing,) = [one for one in found.overtaking if one.in_ms is not None]
    assert (passing.ahead, passing.behind) == ("queue mine", "queue theirs")
    assert passing.in_ms is not None
    # A little later the order is as was predicted, and a little earlier it is not yet.
    for shift_ms, first in ((-10 * MINUTE, "ns/q"), (10 * MINUTE, "ns/p")):
        state = _by_usage()
        state.advance(NOW + passing.in_ms + shift_ms)
        assert state.queue.ordered()[0].endswith(first)


def test_in_a_queue_by_user_the_least_usage_comes_first() -> None:
    usage = used(30, users=(("ada", 20_000 * HOUR), ("bob", 10_000 * HOUR)))
    state = state_of(
        *FULL, queue("q", by_user=True, usage=usage), pod("p", 1, queue="q", user="ada", waits_ms=DAY),
        pod("r", 1, queue="q", user="bob"),
    )  # fmt: skip
    found = rank(state, "ns/p", NOW)
    assert (found.user, found.before[0].by) == ("ada", "user")
    assert "bob" in found.before[0].text


def test_levels_are_reported_from_the_top_with_their_terms() -> None:
    state = state_of(
        *FULL, queue("org"), queue("a", parent="org", usage=used(50), weight=2), queue("b", parent="org"),
        queue("idle", parent="org"), pod("p", 9, queue="a"), pod("q", 9, queue="b"),
    )  # fmt: skip
    top, below = rank(state, "ns/p", NOW).levels
    assert (top.parent, top.own, top.by, [term.queue for term in top.terms]) == ("", "org", "alone", ["org"])
    assert (below.parent, below.own) == ("org", "a")
    assert {term.queue: (term.head, term.weight) for term in below.terms} == {"a": ("ns/p", 2), "b": ("ns/q", 1)}


def test_what_has_to_end_for_the_next_job_to_be_due() -> None:
    state = state_of(
        node("a"), pod("x", 8, "a", queue="mine"), queue("mine"), queue("theirs", guarantee=6),
        pod("p", 2, queue="mine"), pod("q", 6, queue="theirs"),
    )  # fmt: skip
    found = rank(state, "ns/p", NOW)
    (ending,) = [one for one in found.overtaking if "have ended" in one.condition]
    assert (ending.ahead, ending.behind) == ("queue mine", "queue theirs")
    assert ending.condition.startswith("8 GPUs of mine have ended")


def test_a_job_larger_than_all_that_is_due_has_its_turn_when_its_queue_used_little() -> None:
    state = state_of(
        node("a"), node("b"), pod("x", 8, "a", queue="mine"), pod("y", 8, "b", queue="mine"),
        queue("mine", usage=used(5000)), queue("theirs", guarantee=8),
        pod("p", 16, queue="mine"), pod("q", 8, queue="theirs"),
    )  # fmt: skip
    (turn,) = [one for one in rank(state, "ns/p", NOW).overtaking if "usage is below" in one.condition]
    assert turn.condition.startswith("mine holds nothing and its usage is below its part")


def test_the_first_of_its_queue_and_the_jobs_before_it() -> None:
    found = rank(state_of(*FULL, pod("p", 1), pod("q", 1, priority=3)), "ns/p", NOW)
    assert found.overtaking == (
        Overtaking("ns/p", "all other jobs of queue default", "its priority is above 3"),
        Overtaking("a new job of queue default", "ns/p", "its priority is above 0"),
    )


def test_queues_in_which_nobody_waits_and_that_would_come_first() -> None:
    state = state_of(*FULL, queue("mine", usage=used(10)), queue("idle", guarantee=8), pod("p", 2, queue="mine"))
    newcomers = [one for one in rank(state, "ns/p", NOW).overtaking if one.ahead == "a new job of queue idle"]
    assert [one.behind for one in newcomers] == ["ns/p"]


def test_a_job_without_a_queue_has_a_place_all_the_same() -> None:
    found = rank(state_of(*FULL, pod("p", 1, queue="gone"), pod("q", 1)), "ns/p", NOW)
    assert (found.position, found.levels) == (1, ())
    assert _before(state_of(*FULL, pod("q", 1, queue="gone"), pod("p", 1))).by == "no queue"


def test_a_job_that_does_not_wait_has_no_place() -> None:
    with pytest.raises(JobNotFound, match="other/full does not wait: it has a node"):
        rank(state_of(*FULL), "other/full", NOW)
    with pytest.raises(JobNotFound, match="another scheduler"):
        rank(state_of(*FULL, pod("p", 1, managed=False)), "ns/p", NOW)


def test_a_gang_is_found_by_its_name_and_by_what_made_it() -> None:
    labels = (("batch.kubernetes.io/job-name", "work"),)
    reported = (Gang("g", "ns", "train", min_count=2), pod("g0", 8, gang="g", labels=labels), pod("g1", 8, gang="g"))
    for key in ("ns/train", "ns/work", "ns/g1"):
        assert rank(state_of(*FULL, *reported), key, NOW).job == "ns/train"
