# SPDX-License-Identifier: Apache-2.0
"""The tables of states: every state is reached, every state is left, and the scheduler meets no event without a row."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.reservations import reservation
from dovetail.core.reservations.reservation import ReservationState
from dovetail.core.state import State
from dovetail.core.workloads import lifecycle
from dovetail.core.workloads.lifecycle import GangEvent, GangLives, GangState
from tests.core.preemption.lives import MINUTE_MS, World, gang, node, pod


@pytest.mark.parametrize(
    ("transitions", "first", "end"),
    [
        (lifecycle.TRANSITIONS, GangState.PENDING, {GangState.PENDING}),
        (reservation.TRANSITIONS, None, {ReservationState.ENDED}),
    ],
)
def test_each_state_is_reached_and_leads_to_an_end(transitions: Any, first: object, end: set[object]) -> None:
    reached, last = {first}, set[object]()
    while reached != last:
        last = set(reached)
        reached |= {new for state in last for new in transitions.get(state, {}).values()}
    assert reached == set(transitions) | end
    leading, last = set(end), set[object]()
    while leading != last:
        last = set(leading)
        leading |= {state for state, row in transitions.items() if last & set(row.values())}
    assert leading == reached


def test_an_event_without_a_row_is_a_fault() -> None:
    with pytest.raises(KeyError):
        GangLives().handle("g", GangEvent.RELEASED)


def test_a_deadline_is_set_once_and_again_when_it_has_passed() -> None:
    lives = GangLives()
    lives.handle("g", GangEvent.PARTLY_BOUND, 10)
    lives.handle("g", GangEvent.PARTLY_BOUND, 20)
    assert lives.due_ms == {"g": 10} and lives.overdue(GangState.STARTING, 9) == []
    assert lives.overdue(GangState.STARTING, 10) == ["g"] and lives.overdue(GangState.BROKEN, 10) == []
    lives.handle("g", GangEvent.RELEASED, 30)
    assert lives.due_ms == {"g": 30}
    lives.handle("g", GangEvent.MINIMUM_BOUND)
    assert lives.has_started("g") and not lives.due_ms
    lives.handle("g", GangEvent.BROKE, 40)
    assert lives.has_started("g") and lives.due_ms == {"g": 40}
    lives.handle("g", GangEvent.NO_PODS)
    assert not lives.has_started("g") and not lives.gangs(*GangState) and not lives.due_ms


def test_a_half_start_has_no_deadline_of_its_own_once_it_is_a_sub_gang() -> None:
    """It gets a parent after the first of its pods was bound: the deadline is that of the workload above it."""
    state = State()
    step(state, [ev.NodeChanged(node("n", 2)), gang("g", 2)], 1)
    step(state, [ev.PodChanged(pod(f"p{n}", gang="g", created_ms=1)) for n in range(2)], 2)
    assert "g" in state.workloads.lives.due_ms
    step(state, [gang("g", 2, parent="top"), gang("top", 0)], 3)
    assert "g" not in state.workloads.lives.due_ms
    late = step(state, [], 60 * MINUTE_MS)
    assert not [decision for decision in late if getattr(decision, "gang", "") == "g"]


def test_the_deadlines_are_those_of_the_next_step() -> None:
    world = World(node("n", 1))
    assert world.state.next_wake_ms() is None
    world.state.workloads.lives.handle("g", GangEvent.PARTLY_BOUND, 5 * MINUTE_MS)
    assert world.state.next_wake_ms() == 5 * MINUTE_MS
