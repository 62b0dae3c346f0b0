# SPDX-License-Identifier: Apache-2.0
"""A reservation: nodes that are held for one workload, and the states that it passes through.

Rules: `TRANSITIONS` is the whole life of a reservation. An event that a state has no row for is a fault of the
scheduler. A reservation that has ended is in no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.placing.pods import Placed
from dovetail.core.reasons import Expected
from dovetail.core.workloads.index import Precedence

Slots = NDArray[np.int64]


class ReservationState(Enum):
    WAITING = "waiting"
    """It waits for running pods to end by themselves, and holds whole nodes."""
    EVICTING = "evicting"
    """Victims have been evicted for it; it holds what they leave, by amounts and devices."""
    FAILED = "failed"
    """An eviction for it came to nothing; it ends when its workload is tried next."""
    ENDED = "ended"


class ReservationEvent(Enum):
    PLANNED = "planned"
    """Its nodes and its start were worked out, at first or again."""
    EVICTED = "evicted"
    """Victims were found, and are evicted."""
    FAILED = "failed"
    """An eviction failed, or another workload called off one that it waits for."""
    DISPLACED = "displaced"
    """Another workload takes its place."""
    RELEASED = "released"
    """Its workload has started, is gone, or cannot start there."""


TRANSITIONS: Mapping[ReservationState | None, Mapping[ReservationEvent, ReservationState]] = {
    None: {
        ReservationEvent.PLANNED: ReservationState.WAITING,
        ReservationEvent.EVICTED: ReservationState.EVICTING,
    },
    ReservationState.WAITING: {
        ReservationEvent.PLANNED: ReservationState.WAITING,
        ReservationEvent.EVICTED: ReservationState.EVICTING,
        ReservationEvent.DISPLACED: ReservationState.ENDED,
        ReservationEvent.RELEASED: ReservationState.ENDED,
    },
    # Never displaced: pods have been evicted for it.
    ReservationState.EVICTING: {
        ReservationEvent.FAILED: ReservationState.FAILED,
        ReservationEvent.RELEASED: ReservationState.ENDED,
    },
    ReservationState.FAILED: {
        ReservationEvent.FAILED: ReservationState.FAILED,
        ReservationEvent.RELEASED: ReservationState.ENDED,
    },
}
"""The next state by state (None: there is no reservation yet) and event."""


class Reservation(Struct, frozen=True):
    """`slots` (ascending) are held for `workload`, of `queue`, from `expected` on, as it was worked out at
    `planned_ms`. `waits_for` are the pods on these that have to end first. While pods are evicted for it, `nominated`
    are its own pods (uid) with the slots that are held for them, `evicting` the victims, which have to be gone by
    `deadline_ms`, and `waits_for` victims of other workloads that have to be gone, too; `failure` is why an eviction
    failed. `moving`: the owners of the victims make them again elsewhere."""

    workload: str
    queue: str
    slots: Slots
    expected: Expected
    made_ms: int
    planned_ms: int = 0
    precedence: Precedence = (0, 0)
    guaranteed: bool = False
    waits_for: frozenset[str] = frozenset()
    evicting: frozenset[str] = frozenset()
    nominated: Placed = ()
    deadline_ms: int = 0
    failure: str = ""
    moving: bool = False

    @property
    def state(self) -> ReservationState:
        if not self.nominated:
            return ReservationState.WAITING
        return ReservationState.FAILED if self.failure else ReservationState.EVICTING

    @property
    def evicts(self) -> bool:
        """Whether victims are evicted for it, or were."""
        return bool(self.nominated)

    @property
    def leaving(self) -> frozenset[str]:
        """The pods that have to end first, whichever workload evicts them."""
        return self.evicting | self.waits_for

    @property
    def start_ms(self) -> int:
        """When it starts at the latest; for ever where that is not known."""
        return self.expected.start_ms or FOR_EVER_MS
