# SPDX-License-Identifier: Apache-2.0
"""How far the negotiation about one request is, and which requests of a plane are negotiated. Both are in checkpoints
by their type hints, so they are not compiled."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.bargaining.states import REQUESTS, RequestEvent, RequestState
from dovetail.core.bargaining.types import LeaseAlternative, LeaseRequest, Offer
from dovetail.core.reasons import Refusal


class Negotiation(Struct):
    """How far a request is. `alternatives` are those that count now, after counter-offers. `waiting` is the workload
    that waits in the queue, of the alternative `number`; "" while none does. While it is OFFERED, `held` are the
    workloads of the placeholders that hold the devices of its first offers, one for each that can start now. `until_ms`
    is when the offers lapse, or its back-off ends. `chosen` is the alternative that it accepted for later, -1 for none.
    `lapses` counts declined and lapsed offers in a row, `rounds` counter-offers, `made` the offers ever made.
    `reported` is the refusal that was last reported, `reported_ms` when. `revision` changes whenever its workloads are
    made again."""

    request: LeaseRequest
    state: RequestState = RequestState.PENDING
    alternatives: tuple[LeaseAlternative, ...] = ()
    waiting: str = ""
    number: int = -1
    held: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()
    until_ms: int = 0
    chosen: int = -1
    rounds: int = 0
    lapses: int = 0
    made: int = 0
    reported: Refusal | None = None
    reported_ms: int = 0
    revision: int = 0

    @property
    def firm(self) -> bool:
        """Whether what fits is granted without an offer."""
        return self.request.firm or self.chosen >= 0

    def handle(self, event: RequestEvent) -> None:
        """Raises KeyError where the state has no such event."""
        self.state = REQUESTS[self.state][event]


class PlacesRecord(Struct, frozen=True):
    """See `places.Places`: the requests of a plane that have a place, and those that are beyond, with the time when
    each was created."""

    plane: str
    taken: tuple[str, ...]
    beyond: tuple[tuple[str, int], ...]
