# SPDX-License-Identifier: Apache-2.0
"""One open request of a plane: what was asked, what the broker answered, and the moves until there is a lease.

Rules
- The request is put whole each time, with the last answer in it, so a repetition is harmless.
- Offers are answered once: they come again only where the answer had no effect, or other offers are made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec.structs import replace

from dovetail.core.bargaining.types import Answer, LeaseRequest
from dovetail.plane.broker import Broker, RequestNotice
from dovetail.plane.lease import NotGranted, OnRevoke, PlaneLease
from dovetail.plane.policies import Accept, CounterOffer, Decline, Move, OfferPolicy, OfferRound
from dovetail.plane.reasons import sentence
from dovetail.plane.waiting import answered

T = TypeVar("T")


class NegotiationOwner(Protocol):
    """What a negotiation needs of its plane."""

    @property
    def broker(self) -> Broker: ...

    def lease_of(self, request_id: str) -> PlaneLease | None: ...

    async def until(self, ready: Callable[[], T | None], limit_ms: int) -> T | None: ...


class PlaneNegotiation:
    """`record` is the request as it was last put, `on_revoke` is for its lease. `limit_ms` is when the agent gives up,
    `name` what the agent calls it."""

    def __init__(
        self, owner: NegotiationOwner, record: LeaseRequest, limit_ms: int, on_revoke: OnRevoke | None, name: str
    ) -> None:
        self.name = name
        self.record = record
        self.on_revoke = on_revoke
        self.limit_ms = limit_ms
        self.rounds = 0
        """Counter-offers that were made."""
        self._owner = owner
        self._notice: RequestNotice | None = None
        self._gone = False
        self._offered: RequestNotice | None = None
        """What the last turn showed."""
        self._answered: tuple[str, int] | None = None

    def see(self, notice: RequestNotice | None) -> None:
        """News of it; None: it is not in the broker's list."""
        self._notice = notice
        if notice is not None:
            self._gone = False

    def withdrawn(self) -> None:
        """The broker has it no more."""
        self._notice, self._gone = None, True

    @property
    def notice(self) -> RequestNotice | None:
        """The last news of it."""
        return self._notice

    @property
    def sentence(self) -> str:
        """What is in the way, and when that clears."""
        return sentence(self._notice, self._owner.broker.clock.now_ms())

    async def put(self) -> None:
        """Have the broker read the request. Raises BrokerUnavailable once the limit has come."""
        broker = self._owner.broker
        await answered(broker.clock, lambda: broker.put(self.record), self.limit_ms)

    async def turn(self) -> PlaneLease | OfferRound:
        """Wait for the lease, or for offers that are not answered yet. Raises NotGranted."""
        found: PlaneLease | RequestNotice | None = await self._owner.until(self._ready, self.limit_ms)
        if found is None:
            raise NotGranted(f"not granted in time: {self.sentence}")
        if isinstance(found, PlaneLease):
            return found
        self._offered = found
        return self._round(found)

    @property
    def offers(self) -> OfferRound | None:
        """The offers that can be answered now."""
        notice = self._notice
        return self._round(notice) if notice is not None and self._is_open(notice) else None

    def _round(self, notice: RequestNotice) -> OfferRound:
        refused = notice.answer_refused if notice.refused_number else ""
        now_ms = self._owner.broker.clock.now_ms()
        return OfferRound(notice.offers, self.record.alternatives, now_ms, notice.until_ms, self.rounds, refused)

    def _is_open(self, notice: RequestNotice) -> bool:
        return bool(notice.offers) and _key(notice) != self._answered

    def _ready(self) -> PlaneLease | RequestNotice | None:
        lease, notice = self._owner.lease_of(self.record.id), self._notice
        if lease is not None:
            if lease.over.is_set():
                raise NotGranted(f"the lease was over at once: {lease.cause}")
            return lease
        if self._gone:
            raise NotGranted("the request was withdrawn")
        if notice is None:
            return None
        if notice.state == "Denied":
            raise NotGranted(f"denied: {notice.why}")
        if notice.state == "Granted":
            # The lease is in the news before this.
            raise NotGranted("the lease was over before the broker could be heard")
        return notice if self._is_open(notice) else None

    async def answer(self, move: Move) -> None:
        """Answer the offers of the last turn. Raises NotGranted where the move ends the negotiation, and
        BrokerUnavailable once the limit has come."""
        if isinstance(move, Decline):
            raise NotGranted(f"declined: {move.why}")
        notice = self._offered
        if notice is None:
            raise ValueError("no offers were seen: there is nothing to answer before a turn")
        self._answered = _key(notice)
        self.rounds += isinstance(move, CounterOffer)
        self.record = replace(self.record, answer=_answer(notice, move))
        await self.put()

    async def run(self, policy: OfferPolicy) -> PlaneLease:
        """Ask, and answer offers by the policy until there is a lease. Raises NotGranted."""
        await self.put()
        while not isinstance(found := await self.turn(), PlaneLease):
            await self.answer(policy(found))
        return found


def _key(notice: RequestNotice) -> tuple[str, int]:
    return notice.offers[0].id, notice.refused_number


def _answer(notice: RequestNotice, move: Move) -> Answer:
    if isinstance(move, Accept):
        return Answer(move.offer, "accept")
    if isinstance(move, CounterOffer):
        return Answer(notice.offers[0].id, "counter", move.alternative)
    return Answer(notice.offers[0].id, "decline")
