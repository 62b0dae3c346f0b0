# SPDX-License-Identifier: Apache-2.0
"""What a broker does for an agent's control plane, whatever carries the messages.

Rules
- Every call may be repeated: a request is put whole under its id, an action has a number, a withdrawal names an id.
- `follow` lists all that the plane has and then yields each change, in order. It may end at any time with
  BrokerUnavailable; following again begins with a new list, so nothing is lost.
- Times are epoch milliseconds of the broker's clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct

from dovetail.core.bargaining.types import EndCause, GpuLease, LeaseAction, LeaseRequest, Offer


class BrokerUnavailable(Exception):
    """No answer came. The call may have had its effect, or not: repeat it."""


class BrokerRefused(Exception):
    """The broker will never take this call: the plane does not exist, or may not do this."""


class RequestNotice(Struct, frozen=True):
    """How far a request is (`state` of `core.bargaining.states.RequestState`, "": the broker has not read it yet).
    `offers` can be answered until `until_ms`; without offers `until_ms` is when it is tried again (0: when something
    changes). `reason` is the code of why it waits and `why` its text, without names of others. `expected_ms` is its
    latest start (0: not known). `answer_refused` is why the answer `refused_number` (greater each time) had no
    effect."""

    id: str
    state: str
    offers: tuple[Offer, ...] = ()
    until_ms: int = 0
    reason: str = ""
    why: str = ""
    expected_ms: int = 0
    answer_refused: str = ""
    refused_number: int = 0


class RequestGone(Struct, frozen=True):
    id: str


class LeaseNotice(Struct, frozen=True):
    """A live lease. `answered` is the number of the last action that the broker read, `refused` why that had no
    effect."""

    lease: GpuLease
    state: str
    answered: int = 0
    refused: str = ""


class LeaseGone(Struct, frozen=True):
    """The lease is over."""

    id: str
    cause: EndCause


class Listed(Struct, frozen=True):
    """The list is complete: what is not among these ids is not there."""

    requests: frozenset[str]
    leases: frozenset[str]


class Current(Struct, frozen=True):
    """All that was decided about leases until `at_ms` came before this. One comes after the list, and for each
    heartbeat that the broker has read."""

    at_ms: int


Notice = RequestNotice | RequestGone | LeaseNotice | LeaseGone | Listed | Current


class BrokerClock(Protocol):
    """The broker's time as the agent's machine knows it: never behind, so that no lease is used after its end, and
    ahead by no more than what the last heartbeat took to be read. Not known before a Current came."""

    def now_ms(self) -> int: ...

    def least_ms(self) -> int:
        """The broker's time is this or later."""

    async def sleep(self, ms: int) -> None: ...


class Broker(Protocol):
    """Raises BrokerUnavailable or BrokerRefused from each method."""

    @property
    def clock(self) -> BrokerClock: ...

    async def heartbeat(self, plane: str) -> None:
        """The agent of the plane is alive."""

    async def put(self, request: LeaseRequest) -> None:
        """Make the request, or change it: an answer to an offer is part of it."""

    async def withdraw(self, plane: str, request: str) -> None:
        """Nothing is asked any more. A lease that was granted stays."""

    async def act(self, plane: str, action: LeaseAction) -> None:
        """Renew or return a lease. An action whose number is not greater than that of the last one has no effect."""

    def follow(self, plane: str) -> AsyncIterator[Notice]:
        """See the rules above."""
