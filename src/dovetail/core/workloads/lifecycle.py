# SPDX-License-Identifier: Apache-2.0
"""The life of a gang: its states, and the events that lead from one to another.

Rules: `TRANSITIONS` is all of it. A gang of which nothing is noted is PENDING. A workload in a state with a deadline
(STARTING, BROKEN) is checked when that has passed, and gets another one. Sub-gangs are PENDING or STARTED: only
the top of a tree has deadlines.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class GangState(Enum):
    PENDING = "pending"
    """It never had its minimum of pods on nodes, as far as is known."""
    STARTING = "starting"
    """Some of its pods are bound; it is to have its minimum by the deadline, else they are released."""
    STARTED = "started"
    """It had its minimum on nodes at the same time: each further pod replaces or extends what runs."""
    BROKEN = "broken"
    """It had started, has lost pods for good, and is short of its minimum; the rest is released at the deadline."""


class GangEvent(Enum):
    PARTLY_BOUND = "partly bound"
    MINIMUM_BOUND = "minimum bound"
    NONE_BOUND = "none bound"
    """Neither a pod of its own nor a sub-gang is left on nodes."""
    NO_PODS = "no pods"
    """Nothing of it is left, bound or not."""
    BROKE = "broke"
    RECOVERED = "recovered"
    """It is not broken, or not any more."""
    NESTED = "nested"
    """It is a sub-gang now."""
    RELEASED = "released"
    """The deadline has passed, and its bound pods were released."""


TRANSITIONS: Mapping[GangState, Mapping[GangEvent, GangState]] = {
    GangState.PENDING: {
        GangEvent.PARTLY_BOUND: GangState.STARTING,
        GangEvent.MINIMUM_BOUND: GangState.STARTED,
        GangEvent.NONE_BOUND: GangState.PENDING,
        GangEvent.NO_PODS: GangState.PENDING,
        # After a restart of the scheduler it shows in other ways that it had started (`WorkloadIndex.has_started`).
        GangEvent.BROKE: GangState.BROKEN,
        GangEvent.RECOVERED: GangState.PENDING,
        GangEvent.NESTED: GangState.PENDING,
    },
    GangState.STARTING: {
        GangEvent.PARTLY_BOUND: GangState.STARTING,
        GangEvent.MINIMUM_BOUND: GangState.STARTED,
        # Released pods go one by one; those that replace them come under the same deadline.
        GangEvent.NONE_BOUND: GangState.STARTING,
        GangEvent.NO_PODS: GangState.PENDING,
        GangEvent.RECOVERED: GangState.STARTING,
        GangEvent.NESTED: GangState.PENDING,
        GangEvent.RELEASED: GangState.STARTING,
    },
    GangState.STARTED: {
        GangEvent.MINIMUM_BOUND: GangState.STARTED,
        GangEvent.NONE_BOUND: GangState.PENDING,
        GangEvent.NO_PODS: GangState.PENDING,
        GangEvent.BROKE: GangState.BROKEN,
        GangEvent.RECOVERED: GangState.STARTED,
        GangEvent.NESTED: GangState.STARTED,
    },
    GangState.BROKEN: {
        GangEvent.MINIMUM_BOUND: GangState.BROKEN,
        GangEvent.NONE_BOUND: GangState.PENDING,
        GangEvent.NO_PODS: GangState.PENDING,
        GangEvent.BROKE: GangState.BROKEN,
        GangEvent.RECOVERED: GangState.STARTED,
        GangEvent.NESTED: GangState.STARTED,
        GangEvent.RELEASED: GangState.BROKEN,
    },
}
"""The next state by state and event. An event that a state has no row for is a fault of the scheduler."""

_TIMED = (GangState.STARTING, GangState.BROKEN)


class GangLives:
    """The states of all gangs that are not PENDING. `due_ms` has the deadlines."""

    def __init__(self) -> None:
        self._states: dict[str, GangState] = {}
        self.due_ms: dict[str, int] = {}

    def state(self, gang_id: str) -> GangState:
        return self._states.get(gang_id, GangState.PENDING)

    def has_started(self, gang_id: str) -> bool:
        return self._states.get(gang_id) in (GangState.STARTED, GangState.BROKEN)

    def handle(self, gang_id: str, event: GangEvent, due_ms: int = 0) -> None:
        """`due_ms`: the deadline, if the event leads to a state that has one, or was for the last one."""
        old = self.state(gang_id)
        new = TRANSITIONS[old][event]
        if new is not old:
            self.restore(gang_id, new, due_ms)
        elif event is GangEvent.RELEASED:
            self.due_ms[gang_id] = due_ms

    def restore(self, gang_id: str, state: GangState, due_ms: int = 0) -> None:
        """Enter a gang in the state that it had."""
        self._states.pop(gang_id, None)
        self.due_ms.pop(gang_id, None)
        if state is not GangState.PENDING:
            self._states[gang_id] = state
        if state in _TIMED:
            self.due_ms[gang_id] = due_ms

    def gangs(self, *states: GangState) -> list[str]:
        """The gangs in these states, in the order in which they came into them."""
        return [gang_id for gang_id, state in self._states.items() if state in states]

    def overdue(self, state: GangState, now_ms: int) -> list[str]:
        """The gangs in this state whose deadline has passed."""
        return [gang_id for gang_id, due_ms in self.due_ms.items() if due_ms <= now_ms and self.state(gang_id) is state]
