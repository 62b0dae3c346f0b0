# SPDX-License-Identifier: Apache-2.0
"""The states of a request and of a lease, and the events that lead from one to another.

Rules: the two tables are all of it; an event that a state has no entry for is an error of the caller. A request ends
GRANTED or DENIED, or its object is gone. A lease ends once.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class RequestState(Enum):
    PENDING = "Pending"
    """It waits in the queue of its plane."""
    RESERVED = "Reserved"
    """Room is held for it, and its start is known; it waits in the queue all the same."""
    OFFERED = "Offered"
    """The devices of its first offer are held until an answer comes or the offer lapses."""
    BACKING_OFF = "BackingOff"
    """It declined offers, or let them lapse: it is tried again after a while."""
    GRANTED = "Granted"
    DENIED = "Denied"
    """It can never be granted as it is written."""


class RequestEvent(Enum):
    REFUSED = "refused"
    """Nothing fits now, and no room is held for it."""
    ROOM_HELD = "room held"
    OFFER_MADE = "offer made"
    ACCEPTED = "accepted"
    ACCEPTED_LATER = "accepted for later"
    """It waits for the start that it was offered."""
    COUNTERED = "countered"
    DECLINED = "declined"
    LAPSED = "lapsed"
    """No answer came in time."""
    TRIED_AGAIN = "tried again"
    """The time of its back-off is over."""
    CHANGED = "changed"
    """Its alternatives are others now."""
    WAITS = "waits"
    """It is not tried at the moment: its plane or its limits do not let it."""
    INVALID = "invalid"


_ALWAYS = {RequestEvent.CHANGED: RequestState.PENDING, RequestEvent.INVALID: RequestState.DENIED}
_WAITING = {
    **_ALWAYS,
    RequestEvent.REFUSED: RequestState.PENDING,
    RequestEvent.WAITS: RequestState.PENDING,
    RequestEvent.ROOM_HELD: RequestState.RESERVED,
    RequestEvent.OFFER_MADE: RequestState.OFFERED,
    # A firm request is granted without an offer.
    RequestEvent.ACCEPTED: RequestState.GRANTED,
}
REQUESTS: Mapping[RequestState, Mapping[RequestEvent, RequestState]] = {
    RequestState.PENDING: _WAITING,
    RequestState.RESERVED: _WAITING,
    RequestState.OFFERED: {
        **_ALWAYS,
        RequestEvent.ACCEPTED: RequestState.GRANTED,
        RequestEvent.ACCEPTED_LATER: RequestState.RESERVED,
        RequestEvent.COUNTERED: RequestState.PENDING,
        RequestEvent.DECLINED: RequestState.BACKING_OFF,
        RequestEvent.LAPSED: RequestState.BACKING_OFF,
        RequestEvent.WAITS: RequestState.PENDING,
    },
    RequestState.BACKING_OFF: {**_ALWAYS, RequestEvent.TRIED_AGAIN: RequestState.PENDING},
    RequestState.GRANTED: {},
    RequestState.DENIED: {RequestEvent.CHANGED: RequestState.PENDING, RequestEvent.INVALID: RequestState.DENIED},
}


class GpuLeaseState(Enum):
    ACTIVE = "Active"
    EXPIRING = "Expiring"
    """Its end is no further off than its grace: now is the time to save the work."""
    REVOKING = "Revoking"
    """It is taken back at its deadline."""
    ENDED = "Ended"


class LeaseEvent(Enum):
    END_IS_NEAR = "end is near"
    RENEWED = "renewed"
    REVOKED = "revoked"
    OVER = "over"
    """Returned, or its end or deadline has come."""


LEASES: Mapping[GpuLeaseState, Mapping[LeaseEvent, GpuLeaseState]] = {
    GpuLeaseState.ACTIVE: {
        LeaseEvent.END_IS_NEAR: GpuLeaseState.EXPIRING,
        LeaseEvent.RENEWED: GpuLeaseState.ACTIVE,
        LeaseEvent.REVOKED: GpuLeaseState.REVOKING,
        LeaseEvent.OVER: GpuLeaseState.ENDED,
    },
    GpuLeaseState.EXPIRING: {
        LeaseEvent.RENEWED: GpuLeaseState.ACTIVE,
        LeaseEvent.REVOKED: GpuLeaseState.REVOKING,
        LeaseEvent.OVER: GpuLeaseState.ENDED,
    },
    GpuLeaseState.REVOKING: {
        # A second cause can only bring the deadline forward.
        LeaseEvent.REVOKED: GpuLeaseState.REVOKING,
        LeaseEvent.OVER: GpuLeaseState.ENDED,
    },
    GpuLeaseState.ENDED: {},
}
