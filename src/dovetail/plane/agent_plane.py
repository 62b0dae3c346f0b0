# SPDX-License-Identifier: Apache-2.0
"""The control plane of one agent: heartbeats, news from the broker, and what is open: negotiations and leases.

Rules
- One task sends heartbeats, one follows the broker. After BrokerUnavailable each call is repeated after a back-off that
  doubles up to MOST_WAIT_MS; ids and numbers make the repetition harmless.
- What the broker has and nobody here waits for is removed: a request is withdrawn, a lease is returned. So a cancelled
  call, a lost answer and an earlier process leave nothing behind. With `adopt` leases of an earlier process are kept.
- One process at a time is the agent of a plane.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from inspect import isawaitable
from types import TracebackType
from typing import TypeVar

from dovetail.core.bargaining.types import EndCause, LeaseAction
from dovetail.plane import placement
from dovetail.plane.broker import (
    Broker,
    BrokerClock,
    BrokerRefused,
    BrokerUnavailable,
    Current,
    LeaseGone,
    LeaseNotice,
    Listed,
    Notice,
    RequestGone,
    RequestNotice,
)
from dovetail.plane.lease import NotGranted, OnRevoke, PlaneLease, RevokeNotice, advice
from dovetail.plane.negotiation import PlaneNegotiation
from dovetail.plane.options import AgentRequest, Option, record_of, request_of
from dovetail.plane.placement import AgentPod, Assignment
from dovetail.plane.policies import FirstFit, OfferPolicy
from dovetail.plane.tasks import PlaneTasks
from dovetail.plane.waiting import FIRST_WAIT_MS, NEVER_MS, Backoff, News, answered, finished, until_turn_ms

CLOSING_MS = 5_000
"""How long the end of a plane, or of a block with a lease, waits for a broker that is away."""
_MINUTE_MS = 60_000
T = TypeVar("T")


class AgentPlane:
    """Use it as `async with Plane(broker, "namespace/name") as plane`. `session` is part of the ids of its requests: it
    has to differ from that of every earlier process of this plane (by default it is random). Raises ValueError for a
    period of heartbeats below 1 ms."""

    def __init__(
        self, broker: Broker, plane: str, *, heartbeat_ms: int = 10_000, adopt: bool = False, leave: bool = False,
        session: str = "",
    ) -> None:  # fmt: skip
        if heartbeat_ms < 1:
            raise ValueError("heartbeat_ms must be above 0")
        self.id = plane
        self.broker = broker
        self._heartbeat_ms = heartbeat_ms
        self._adopt = adopt
        self._leave = leave
        self._session = session or uuid.uuid4().hex[:12]
        self._count = 0
        self._heard_ms = 0
        self._listed = False
        self._open: dict[str, PlaneNegotiation] = {}
        self._leases: dict[str, PlaneLease] = {}
        self._removing: set[str] = set()
        self._returning: set[str] = set()
        self._news = News()
        self._failed: BrokerRefused | None = None
        self._tasks = PlaneTasks()
        self._closing = False

    @property
    def clock(self) -> BrokerClock:
        return self.broker.clock

    @property
    def heard_ms(self) -> int:
        """All that the broker decided until then is known here."""
        return self._heard_ms

    @property
    def leases(self) -> tuple[PlaneLease, ...]:
        """The leases that are surely live."""
        return tuple([lease for lease in self._leases.values() if lease.live])

    async def __aenter__(self) -> AgentPlane:
        self._tasks.loop(self._beat())
        self._tasks.loop(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return all leases, and withdraw all requests, as far as the broker can be reached within CLOSING_MS; with
        `leave` they stay."""
        self._closing = True
        if not self._leave:
            for lease in list(self._leases.values()):
                self._tasks.spawn(lease.give_back())
            for request_id in list(self._open):
                self._remove(request_id)
        await self._tasks.close(self.clock, CLOSING_MS)

    async def listed(self) -> None:
        """Wait until all that the plane has is known: with `adopt`, the leases of an earlier process. Raises
        BrokerRefused."""
        await self.until(lambda: (self._listed and self._heard_ms) or None, NEVER_MS)

    @asynccontextmanager
    async def lease(
        self,
        options: Option | Sequence[Option] | AgentRequest,
        on_revoke: OnRevoke | None = None,
        policy: OfferPolicy | None = None,
    ) -> AsyncIterator[PlaneLease]:
        """Hold a lease of one of the options while the block runs. `on_revoke` is called once for each deadline: when
        the lease is revoked, and when its term is about to end. The block's end returns the lease, also after an
        exception and when it is cancelled. Raises NotGranted."""
        held = await self.negotiate(options, policy, on_revoke)
        try:
            yield held
        finally:
            # Also where this is cancelled, the return goes on by itself.
            await finished(self.clock, [self._tasks.spawn(held.give_back())], CLOSING_MS)

    async def negotiate(
        self,
        request: Option | Sequence[Option] | AgentRequest,
        policy: OfferPolicy | None = None,
        on_revoke: OnRevoke | None = None,
    ) -> PlaneLease:
        """Ask, answer offers by the policy (FirstFit), and return the lease. It is held until it is returned, or the
        plane ends. Raises NotGranted: denied, declined by the policy, or not granted within `within_minutes`."""
        asked = request_of(request)
        within_ms = round(_MINUTE_MS * asked.within_minutes) or NEVER_MS
        await self._met(within_ms)
        async with self.opened(asked, self.clock.now_ms() + within_ms, on_revoke) as negotiation:
            try:
                return await negotiation.run(policy if policy is not None else FirstFit())
            except BaseException:
                # Cancelled after the grant was heard, and before the caller has it.
                held = self.lease_of(negotiation.record.id)
                if held is not None:
                    self._tasks.spawn(held.give_back())
                raise

    @asynccontextmanager
    async def opened(
        self, asked: AgentRequest, limit_ms: int = NEVER_MS, on_revoke: OnRevoke | None = None
    ) -> AsyncIterator[PlaneNegotiation]:
        """A request that is negotiated while the block runs, by its own moves (`PlaneNegotiation`). In the end it is
        withdrawn, unless there is a lease: that is held as after `negotiate`."""
        await self._met(NEVER_MS)
        self._count += 1
        record = record_of(asked, self.id, f"{self._session}-{self._count}", self.clock.now_ms())
        self._open[record.id] = negotiation = PlaneNegotiation(self, record, limit_ms, on_revoke, asked.name)
        try:
            yield negotiation
        finally:
            self._open.pop(record.id, None)
            if record.id not in self._leases:
                self._remove(record.id)

    def lease_of(self, request_id: str) -> PlaneLease | None:
        """The lease that the request led to, as long as it is not over."""
        return self._leases.get(request_id)

    async def _met(self, within_ms: int) -> None:
        """Wait until the broker was heard: before that its time is not known. Raises NotGranted."""
        if await self.until(lambda: self._heard_ms or None, self.clock.now_ms() + within_ms) is None:
            raise NotGranted("not granted in time: the broker was not heard")

    def place(self, pods: Sequence[AgentPod], beside: Iterable[Assignment] = ()) -> tuple[Assignment, ...] | None:
        """Where the pods go among the devices of the live leases, all of them or None (see `placement.place`)."""
        return placement.place(pods, [lease.record for lease in self.leases], beside)

    async def why(self, request: AgentRequest | str) -> str:
        """One sentence: what is in the way of an open request, and when that clears. By the request's name."""
        name = request if isinstance(request, str) else request.name
        await self.until(lambda: self._listed or None, NEVER_MS)
        for negotiation in self._open.values():
            if name in (negotiation.name, negotiation.record.name):
                return negotiation.sentence
        for lease in self._leases.values():
            if name in (lease.asked_as, lease.name) and not lease.over.is_set():
                minutes = lease.remaining().total_seconds() / 60
                return f"The lease {name} is granted, and ends in {minutes:.1f} minutes."
        return f"No request {name} is open."

    async def _beat(self) -> None:
        waits = Backoff()
        while True:
            try:
                await self.broker.heartbeat(self.id)
                waits, beat_ms = Backoff(), self.clock.now_ms()
                left_ms = until_turn_ms(self.id, self._heartbeat_ms, beat_ms)
                # Leases of a short grace need news more often.
                while (now_ms := self.clock.now_ms()) < (next_ms := beat_ms + self._wait_ms(left_ms)):
                    await self._news.wait(self.clock, next_ms - now_ms)
            except BrokerUnavailable:
                await self.clock.sleep(waits.next_ms())
            except BrokerRefused as error:
                self._fail(error)
                return

    def _wait_ms(self, most_ms: int) -> int:
        graces = [lease.record.grace_ms for lease in self._leases.values() if lease.record.grace_ms]
        return min(most_ms, max(FIRST_WAIT_MS, min(graces, default=NEVER_MS) // 3))

    async def _follow(self) -> None:
        waits = Backoff()
        while True:
            try:
                async for notice in self.broker.follow(self.id):
                    waits = Backoff()
                    self._take(notice)
            except BrokerUnavailable:
                pass
            except BrokerRefused as error:
                self._fail(error)
                return
            await self.clock.sleep(waits.next_ms())

    def _take(self, notice: Notice) -> None:
        """News, in the order of the broker."""
        match notice:
            case RequestNotice():
                if notice.id in self._open:
                    self._open[notice.id].see(notice)
                elif notice.state != "Granted":
                    self._remove(notice.id)
            case RequestGone():
                if notice.id in self._open:
                    self._open[notice.id].withdrawn()
            case LeaseNotice():
                self._lease_seen(notice)
            case LeaseGone():
                self._over(notice.id, notice.cause)
            case Listed():
                self._all_listed(notice)
            case Current():
                # Not the greatest: another broker that goes on has another clock.
                self._heard_ms = notice.at_ms
        self._news.put()

    def _lease_seen(self, notice: LeaseNotice) -> None:
        lease = self._leases.get(notice.lease.id)
        if lease is None:
            negotiation = self._open.get(notice.lease.id)
            wanted = negotiation is not None or (self._adopt and not self._listed)
            lease = PlaneLease(self, notice)
            if negotiation is not None:
                lease.on_revoke, lease.asked_as = negotiation.on_revoke, negotiation.name
            lease.see(notice)
            if not wanted or self._closing:
                if notice.lease.id not in self._returning:
                    self._returning.add(notice.lease.id)
                    self._tasks.spawn(self._return(lease))
                return
            self._leases[lease.id] = lease
            self._tasks.loop(self._keep(lease))
        lease.see(notice)

    async def _return(self, lease: PlaneLease) -> None:
        try:
            await lease.give_back()
        finally:
            self._returning.discard(lease.id)

    def _over(self, lease_id: str, cause: EndCause) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            lease.close(cause)
        self._remove(lease_id)

    def _all_listed(self, listed: Listed) -> None:
        self._listed = True
        for lease_id in [one for one in self._leases if one not in listed.leases]:
            lease = self._leases[lease_id]
            expired = self.clock.now_ms() >= lease.record.end_ms
            cause = lease.revocation.cause if lease.revocation is not None else EndCause.EXPIRED
            self._over(lease_id, cause if expired or lease.revocation is not None else EndCause.LOST)
        for request_id in listed.requests - self._open.keys() - listed.leases:
            self._remove(request_id)
        for request_id, negotiation in self._open.items():
            if request_id not in listed.requests:
                negotiation.see(None)
                if request_id not in self._leases:
                    # The list may be older than the request: it is put once more.
                    self._tasks.spawn(self._again(negotiation))

    async def _again(self, negotiation: PlaneNegotiation) -> None:
        request_id = negotiation.record.id
        if request_id not in self._open:
            return
        with suppress(BrokerRefused):
            await answered(self.clock, lambda: self.broker.put(negotiation.record))
        if request_id not in self._open and request_id not in self._leases:
            self._remove(request_id)

    async def _keep(self, lease: PlaneLease) -> None:
        """Report the end of the lease when it comes near, and close it when it is there."""
        called: asyncio.Task[None] | None = None
        try:
            while not lease.over.is_set():
                now_ms = self.clock.now_ms()
                if now_ms >= lease.end_ms:
                    revocation = lease.revocation
                    self._over(lease.id, revocation.cause if revocation is not None else EndCause.EXPIRED)
                    break
                near = lease.revocation is not None or lease.notice.state == "Expiring"
                if near and lease.on_revoke is not None and lease.reported_ms != lease.end_ms:
                    lease.reported_ms = lease.end_ms
                    called = self._tasks.spawn(_called(lease.on_revoke, advice(lease, now_ms)))
                await self._news.wait(self.clock, lease.end_ms - now_ms)
        finally:
            if called is not None and not lease.over.is_set():
                called.cancel()

    def _remove(self, request_id: str) -> None:
        """Nobody here waits for the request any more."""
        if request_id not in self._removing:
            self._removing.add(request_id)
            self._tasks.spawn(self._withdraw(request_id))

    async def _withdraw(self, request_id: str) -> None:
        try:
            with suppress(BrokerRefused):
                await answered(self.clock, lambda: self.broker.withdraw(self.id, request_id))
        finally:
            self._removing.discard(request_id)

    async def act(self, lease: PlaneLease, action: LeaseAction) -> None:
        """Have the broker read the action, as long as the lease could be live."""
        if action.action == "return":
            self._leases.pop(lease.id, None)
        with suppress(BrokerUnavailable, BrokerRefused):
            await answered(self.clock, lambda: self.broker.act(self.id, action), lease.record.end_ms)
        if action.action == "return":
            self._remove(lease.id)

    async def answer_to(self, lease: PlaneLease, number: int) -> str:
        """Why the action had no effect, once the broker has read it; "" where it had."""

        def answer() -> str | None:
            if lease.over.is_set():
                return "the lease is over"
            return f"={lease.notice.refused}" if lease.notice.answered >= number else None

        found = await self.until(answer, lease.record.end_ms)
        return "the broker did not answer" if found is None else found.removeprefix("=")

    async def until(self, ready: Callable[[], T | None], limit_ms: int) -> T | None:
        """Wait for something; None where the limit comes first. Raises BrokerRefused where the plane has failed."""
        while True:
            if self._failed is not None:
                raise self._failed
            if (found := ready()) is not None:
                return found
            now_ms = self.clock.now_ms()
            if now_ms >= limit_ms:
                return None
            await self._news.wait(self.clock, limit_ms - now_ms)

    def wake(self) -> None:
        """Have all that wait by `until` check again: something has changed that is not news of the broker."""
        self._news.put()

    def _fail(self, error: BrokerRefused) -> None:
        self._failed = error
        self._news.put()


async def _called(on_revoke: OnRevoke, notice: RevokeNotice) -> None:
    found = on_revoke(notice)
    if isawaitable(found):
        await found
