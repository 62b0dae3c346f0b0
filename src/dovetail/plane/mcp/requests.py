# SPDX-License-Identifier: Apache-2.0
"""One request that a model steers: a task negotiates, and waits for the model's answer to each set of offers.

Rules
- Whatever the model does, calls to the broker go on in the task: an outage delays them and blocks no tool.
- Offers have short ids, r1.1, r1.2, ..., which are never used again. Equal offers that come again have their old ids.
- A model is slow, and an offer lapses within seconds. To accept one that has lapsed is to accept its terms: an offer of
  them that is not worse is accepted when it comes, until the model gives another answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dovetail.core.bargaining.states import RequestState
from dovetail.core.bargaining.types import EndCause, Offer
from dovetail.plane.agent_plane import AgentPlane
from dovetail.plane.broker import BrokerRefused, BrokerUnavailable
from dovetail.plane.lease import NotGranted, PlaneLease, RevokeNotice
from dovetail.plane.mcp.notices import LeaseWarnings
from dovetail.plane.negotiation import PlaneNegotiation
from dovetail.plane.options import AgentRequest
from dovetail.plane.policies import Accept, Move, OfferRound

MOST_OFFERS = 32
"""Of one request, that can be named: the oldest are forgotten."""
WITHDRAWN = "withdrawn"


class SteeredRequest:
    """`id` is that of the request, and of its lease. `note` is the model's own."""

    def __init__(
        self, plane: AgentPlane, request_id: str, note: str, asked: AgentRequest, warnings: LeaseWarnings
    ) -> None:
        self.id = request_id
        self.note = note
        self.asked = asked
        self.lease: PlaneLease | None = None
        self.ended = ""
        """Why there is no lease, and will be none; "" while there may be one."""
        self.turns = 0
        """How often there was something new to answer, or to use."""
        self.refused = ""
        """Why the last answer had no effect."""
        self.accepted: Offer | None = None
        """The terms that the model accepted last."""
        self.negotiation: PlaneNegotiation | None = None
        self._plane = plane
        self._warnings = warnings
        self._offers: dict[str, Offer] = {}
        self._count = 0
        self.answered = False
        """Whether an answer of the model has not reached the broker yet."""
        self._tried = ""
        """The first offer of the last set that was compared with what was accepted."""
        self._move: asyncio.Future[Move] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, keep_ms: int) -> None:
        """Ask, until there is a lease, or so much time has passed since the broker was heard."""
        self._task = asyncio.create_task(self._run(keep_ms))

    @property
    def open(self) -> bool:
        """Whether there may be a lease yet."""
        return self.lease is None and not self.ended

    @property
    def waiting(self) -> bool:
        """Whether the model has to answer."""
        return bool(self.offers)

    @property
    def offers(self) -> dict[str, Offer]:
        """The offers that can be answered now, by their ids."""
        asked = self.negotiation is not None and self._move is not None and not self._move.done()
        table = self.negotiation.offers if self.negotiation is not None and asked else None
        return {self._name(offer): offer for offer in table.offers} if table is not None else {}

    @property
    def reason(self) -> str:
        """Why the broker has no offer at the moment; "" where it has not decided."""
        notice = self.negotiation.notice if self.negotiation is not None else None
        return notice.why or notice.reason if notice is not None and not notice.offers else ""

    @property
    def reserved(self) -> bool:
        """Whether an offer that starts later was accepted, and room is held for it."""
        notice = self.negotiation.notice if self.negotiation is not None else None
        accepted = self.accepted is not None and not self.accepted.now and not self.answered
        return accepted and notice is not None and notice.state == RequestState.RESERVED.value

    @property
    def sentence(self) -> str:
        """What is in the way, and when that clears."""
        return self.negotiation.sentence if self.negotiation is not None else "It is sent to the broker."

    @property
    def answer_within_s(self) -> int:
        """Until when the offers are there, in seconds."""
        table = self.negotiation.offers if self.negotiation is not None else None
        return max(0, (table.until_ms - self._plane.clock.now_ms()) // 1000) if table is not None else 0

    @property
    def state(self) -> str:
        """held, ended, offered, accepted or waiting."""
        if self.lease is not None:
            return "held"
        if self.ended:
            return "ended"
        return "offered" if self.offers else "accepted" if self.accepted is not None else "waiting"

    def offer(self, offer_id: str) -> Offer | None:
        """One of the offers of this request, also where it has lapsed."""
        return self._offers.get(offer_id)

    def accept(self, offer_id: str) -> None:
        """Take these terms: now where the offer is there, else when they are offered again."""
        self.accepted = self._offers[offer_id]
        current = self.offers.get(offer_id)
        if current is not None:
            self.answer(Accept(current.id))

    def answer(self, move: Move) -> None:
        """Answer the offers that are there; what was accepted before counts no more, unless this accepts."""
        if not isinstance(move, Accept):
            self.accepted = None
        if self._move is not None and not self._move.done():
            self.answered = True
            self._move.set_result(move)

    async def close(self) -> None:
        """Ask for nothing any more. A lease stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if self.lease is not None and not self.lease.over.is_set():
                self._task = asyncio.create_task(self._watch(self.lease))

    async def stop(self) -> None:
        """Do nothing any more: the plane ends, and returns its leases."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, keep_ms: int) -> None:
        try:
            # Before that the broker's time is not known.
            await self._plane.listed()
            limit_ms = self._plane.clock.now_ms() + keep_ms
            async with self._plane.opened(self.asked, limit_ms, self._revoked) as negotiation:
                self.negotiation = negotiation
                await negotiation.put()
                while not isinstance(found := await negotiation.turn(), PlaneLease):
                    self.refused = found.refused
                    move = self._as_accepted(found) or await self._next_move(negotiation, found)
                    if move is not None:
                        await negotiation.answer(move)
                    self.answered = False
                self._changed(lease=found)
        except NotGranted as error:
            self._changed(ended=str(error))
        except (BrokerRefused, BrokerUnavailable) as error:
            self._changed(ended=f"the broker does not take it: {error}")
        except asyncio.CancelledError:
            self._changed(lease=self._plane.lease_of(self._id_at_broker), ended=WITHDRAWN)
            raise
        if self.lease is not None:
            await self._watch(self.lease)

    async def _watch(self, lease: PlaneLease) -> None:
        await lease.over.wait()
        if lease.cause is not None and lease.cause is not EndCause.RETURNED:
            self._warnings.over(self.id, lease.cause)

    @property
    def _id_at_broker(self) -> str:
        return self.negotiation.record.id if self.negotiation is not None else ""

    def _changed(self, lease: PlaneLease | None = None, ended: str = "") -> None:
        if self.lease is None and not self.ended:
            self.lease, self.ended = lease, "" if lease is not None else ended
        self.turns += 1
        self._plane.wake()

    def _as_accepted(self, table: OfferRound) -> Move | None:
        """What the model accepted, where it is offered again, or better: no later."""
        terms = self.accepted
        if terms is None or self._tried == table.offers[0].id:
            return None
        self._tried = table.offers[0].id
        for offer in table.offers:
            no_later = offer.now or (not terms.now and offer.start_ms <= terms.start_ms)
            if offer.alternative == terms.alternative and no_later:
                return Accept(offer.id)
        return None

    async def _next_move(self, negotiation: PlaneNegotiation, table: OfferRound) -> Move | None:
        """The model's answer; None where the offers have changed before it came."""
        self._move = move = asyncio.get_running_loop().create_future()
        self._changed()

        def others() -> bool | None:
            current = negotiation.offers
            return None if current is not None and current.offers == table.offers else True

        gone: asyncio.Future[bool | None] = asyncio.ensure_future(self._plane.until(others, negotiation.limit_ms))
        try:
            waiting: list[asyncio.Future[Any]] = [move, gone]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return move.result() if move.done() else None
        finally:
            self._move = None
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    def _name(self, offer: Offer) -> str:
        """The short id of an offer: that of an equal one that the model has seen."""
        for known, earlier in self._offers.items():
            if _terms(earlier) == _terms(offer):
                self._offers[known] = offer
                return known
        self._count += 1
        name = f"{self.id}.{self._count}"
        self._offers[name] = offer
        if len(self._offers) > MOST_OFFERS:
            del self._offers[next(iter(self._offers))]
        return name

    def _revoked(self, notice: RevokeNotice) -> None:
        self._warnings.deadline(self.id, notice)


def _terms(offer: Offer) -> object:
    """What makes two offers equal for the model: what, where, and when."""
    where = [(holding.node, holding.devices, holding.instances) for holding in offer.holdings]
    return offer.alternative, offer.now, where, None if offer.now else offer.start_ms
