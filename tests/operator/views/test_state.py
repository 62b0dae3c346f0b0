# SPDX-License-Identifier: Apache-2.0
"""When the API of views is registered, and how often that changes."""

from __future__ import annotations

import random

import pytest

from dovetail.operator.views.state import (
    PAUSE_MAX_S,
    PAUSE_S,
    STEADY_S,
    UNANSWERED_S,
    ViewFacts,
    ViewRecord,
    ViewState,
    followed,
    withdrawn,
)

NOBODY, UNCHECKED = ViewFacts(), ViewFacts(True)
ANSWERED, UNANSWERED = ViewFacts(True, True), ViewFacts(True, False, "refused")
AWAITED, REGISTERED, WITHDRAWN = ViewState


def after(*steps: tuple[float, ViewFacts], record: ViewRecord | None = None) -> ViewRecord:
    record = record or ViewRecord()
    for now_s, facts in steps:
        record = followed(record, facts, now_s)
    return record


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ([(0, NOBODY)], AWAITED),
        ([(0, UNCHECKED)], REGISTERED),
        ([(0, UNCHECKED), (900, UNCHECKED)], REGISTERED),
        ([(0, UNCHECKED), (1, NOBODY)], AWAITED),
        ([(0, UNCHECKED), (1, UNANSWERED), (UNANSWERED_S, UNANSWERED)], REGISTERED),
        ([(0, UNCHECKED), (1, UNANSWERED), (1 + UNANSWERED_S, UNANSWERED)], WITHDRAWN),
        ([(0, UNCHECKED), (1, UNANSWERED), (9, ANSWERED), (10, UNANSWERED), (185, UNANSWERED)], REGISTERED),
    ],
)
def test_each_way(steps: list[tuple[float, ViewFacts]], state: ViewState) -> None:
    assert after(*steps).state is state


def test_it_comes_back_after_the_pause_when_an_address_is_written() -> None:
    record = withdrawn("refused", 0)
    assert after((PAUSE_S - 1, UNCHECKED), record=record).state is WITHDRAWN
    assert after((PAUSE_S, NOBODY), (9 * PAUSE_S, NOBODY), record=record).state is WITHDRAWN
    assert after((PAUSE_S, UNCHECKED), record=record).state is REGISTERED


def test_the_pause_doubles_up_to_an_hour_until_the_api_was_answered_for_long_enough() -> None:
    record, now_s, pauses = after((0, UNCHECKED)), 0.0, []
    for _ in range(9):
        record = after((now_s, UNANSWERED), (now_s + UNANSWERED_S, UNANSWERED), record=record)
        now_s += UNANSWERED_S
        pauses.append(record.until_s - now_s)
        now_s = record.until_s
        record = after((now_s, UNCHECKED), record=record)
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, PAUSE_MAX_S]
    # That is noticed when it ends, too: nothing announces that the time is over.
    record = after((now_s, ANSWERED), (now_s + STEADY_S, UNANSWERED), record=record)
    now_s += STEADY_S + UNANSWERED_S
    assert after((now_s, UNANSWERED), record=record).until_s == now_s + PAUSE_S


def test_the_first_words_of_the_api_server_stay() -> None:
    second = ViewFacts(True, False, "timeout")
    record = after((0, UNCHECKED), (1, UNANSWERED), (2, second), (200, second))
    assert (record.state, record.why) == (WITHDRAWN, "refused")


def test_it_is_due_when_something_happens_without_a_change() -> None:
    assert after((0, UNCHECKED)).due_s is None and after((0, UNCHECKED), (1, ANSWERED)).due_s is None
    assert after((0, UNCHECKED), (5, UNANSWERED)).due_s == 5 + UNANSWERED_S
    assert withdrawn("refused", 7).due_s == 7 + PAUSE_S


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.slow
def test_whatever_happens_it_changes_a_bounded_number_of_times_an_hour(seed: int) -> None:
    """And while nothing answers it is never there for longer than `UNANSWERED_S`, seen every ten seconds."""
    random_ = random.Random(seed)
    record, changes, unanswered_s = ViewRecord(), [], 0.0
    alive = reached = True
    for now_s in range(0, 86_400, 10):
        if random_.random() < 1 / random_.choice((2, 20, 200)):
            alive = random_.random() < 0.7
        if random_.random() < 1 / random_.choice((2, 20, 200)):
            reached = random_.random() < 0.5
        registered = record.state is REGISTERED
        answered = (alive and reached) if registered else None
        address = alive or registered
        before, record = record, followed(record, ViewFacts(address, answered, "" if answered else "refused"), now_s)
        if (record.state is REGISTERED) is not registered:
            changes.append(now_s)
        unanswered_s = unanswered_s + 10 if record.state is REGISTERED and answered is False else 0
        assert unanswered_s <= UNANSWERED_S + 10
        assert record.tries <= before.tries + 1
    assert changes
    for now_s in changes:
        assert sum(now_s <= one < now_s + 3600 for one in changes) <= 16


def test_what_is_due_is_done_at_its_time_whatever_the_rounding() -> None:
    draw = random.Random(7)
    for since_s in (draw.uniform(0, 500) for _ in range(1000)):
        record = followed(ViewRecord(ViewState.REGISTERED), UNANSWERED, since_s)
        assert record.due_s is not None
        assert followed(record, UNANSWERED, record.due_s).state is ViewState.WITHDRAWN
