# SPDX-License-Identifier: Apache-2.0
"""The control plane of one agent: heartbeats, news from the broker, negotiations, and the leases that it holds.

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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from inspect import isawaitable
from types import TracebackType
from typing import TypeVar

from msgspec.structs import replace

from dovetail.core.bargaining.types import Answer, EndCause, LeaseAction, LeaseRequest
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
from dovetail.plane.options import AgentRequest, Option, request_of
from dovetail.plane.placement import AgentPod, Assignment
from dovetail.plane.policies import Accept, CounterOffer, Decline, FirstFit, Move, OfferPolicy, OfferRound
from dovetail.plane.reasons import sentence

FIRST_WAIT_MS = 100
MOST_WAIT_MS = 10_000
CLOSING_MS = 5_000
"""How long the end of a plane, or of a block with a lease, waits for a broker that is away."""
_MINUTE_MS = 60_000
_NEVER_MS = 2**62
T = TypeVar("T")


class AgentPlane:
    """Use it as `async with Plane(broker, "namespace/name") as plane`. `session` is part of the ids of its requests: it
    has to differ from that of every earlier process of this plane (by default it is random)."""

    def __init__(
        self, broker: Broker, plane: str, *, heartbeat_ms: int = 10_000, adopt: bool = False, session: str = ""
    ) -> None:
        self.id = plane
        self._broker = broker
        self._heartbeat_ms = heartbeat_ms
        self._adopt = adopt
        self._session = session or uuid.uuid4().hex[:12]
        self._count = 0
        self._heard_ms = 0
        self._listed = False
        self._requests: dict[str, LeaseRequest] = {}
        """Those that are negotiated."""
        self._callbacks: dict[str, OnRevoke | None] = {}
        self._notices: dict[str, RequestNotice] = {}
        self._gone: set[str] = set()
        self._leases: dict[str, PlaneLease] = {}
        self._removing: set[str] = set()
        self._news = asyncio.Event()
        self._failed: BrokerRefused | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def clock(self) -> BrokerClock:
        return self._broker.clock

    @property
    def heard_ms(self) -> int:
        """All that the broker decided until then is known here."""
        return self._heard_ms

    @property
    def leases(self) -> tuple[PlaneLease, ...]:
        """The leases that are surely live."""
        return tuple([lease for lease in self._leases.values() if lease.live])

    async def __aenter__(self) -> AgentPlane:
        self._loops = [asyncio.create_task(self._beat()), asyncio.create_task(self._follow())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return all leases, and withdraw all requests, as far as the broker can be reached within CLOSING_MS."""
        self._closing = True
        for lease in list(self._leases.values()):
            self._spawn(lease.give_back())
        for request_id in list(self._requests):
            self._remove(request_id)
        try:
            await self._finish(self._tasks)
        finally:
            left = [*self._loops, *self._tasks]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _finish(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """Wait for these, but no longer than CLOSING_MS: of the broker's clock, and of this machine's, since the clock
        of a test may stand still. They go on after that."""
        limit = asyncio.ensure_future(self.clock.sleep(CLOSING_MS))
        try:
            while (left := [task for task in tasks if not task.done()]) and not limit.done():
                waiting = [*left, limit]
                done, _ = await asyncio.wait(waiting, timeout=CLOSING_MS / 1000, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    return
        finally:
            limit.cancel()

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
            await self._finish([self._spawn(held.give_back())])

    async def negotiate(
        self,
        request: Option | Sequence[Option] | AgentRequest,
        policy: OfferPolicy | None = None,
        on_revoke: OnRevoke | None = None,
    ) -> PlaneLease:
        """Ask, answer offers by the policy (FirstFit), and return the lease. It is held until it is returned, or the
        plane ends. Raises NotGranted: denied, declined by the policy, or not granted within `within_minutes`."""
        asked = request_of(request)
        decide: OfferPolicy = policy if policy is not None else FirstFit()
        record = self._record(asked)
        limit_ms = self.clock.now_ms() + round(_MINUTE_MS * asked.within_minutes) if asked.within_minutes else _NEVER_MS
        self._requests[record.id] = record
        self._callbacks[record.id] = on_revoke
        try:
            await self._retry(lambda: self._broker.put(self._requests[record.id]), limit_ms)
            return await self._negotiate(record, decide, limit_ms)
        finally:
            self._requests.pop(record.id, None)
            self._callbacks.pop(record.id, None)
            if record.id not in self._leases:
                self._remove(record.id)

    async def _negotiate(self, record: LeaseRequest, decide: OfferPolicy, limit_ms: int) -> PlaneLease:
        answered: tuple[str, int] | None = None
        rounds = 0
        while True:
            turn = partial(self._turn, record.id, answered)
            found: PlaneLease | RequestNotice | None = await self._until(turn, limit_ms)
            if found is None:
                raise NotGranted(f"not granted in time: {self._sentence(record.id)}")
            if isinstance(found, PlaneLease):
                return found
            answered, refused = _key(found), ""
            if found.refused_number:
                refused = found.answer_refused
            table = OfferRound(found.offers, record.alternatives, self.clock.now_ms(), found.until_ms, rounds, refused)
            move = decide(table)
            if isinstance(move, Decline):
                raise NotGranted(f"declined: {move.why}")
            rounds += isinstance(move, CounterOffer)
            self._requests[record.id] = replace(self._requests[record.id], answer=_answer(found, move))
            await self._retry(lambda: self._broker.put(self._requests[record.id]), limit_ms)

    def _turn(self, request_id: str, answered: tuple[str, int] | None) -> PlaneLease | RequestNotice | None:
        """The lease, or offers that are not answered yet. Raises NotGranted."""
        lease = self._leases.get(request_id)
        if lease is not None:
            if lease.over.is_set():
                raise NotGranted(f"the lease was over at once: {lease.cause}")
            return lease
        if request_id in self._gone:
            raise NotGranted("the request was withdrawn")
        notice = self._notices.get(request_id)
        if notice is None:
            return None
        if notice.state == "Denied":
            raise NotGranted(f"denied: {notice.why}")
        if notice.state == "Granted":
            # The lease is in the news before this.
            raise NotGranted("the lease was over before the broker could be heard")
        return notice if notice.offers and _key(notice) != answered else None

    def _record(self, asked: AgentRequest) -> LeaseRequest:
        now_ms = self.clock.now_ms()
        self._count += 1
        return LeaseRequest(
            f"{self.id}/{self._session}-{self._count}", self.id, asked.name or f"request-{self._count}",
            tuple([option.alternative(now_ms) for option in asked.options]), asked.firm, now_ms,
            round(_MINUTE_MS * asked.grace_minutes), round(_MINUTE_MS * asked.checkpoint_minutes),
            round(1000 * asked.startup_seconds),
        )  # fmt: skip

    def place(self, pods: Sequence[AgentPod], beside: Iterable[Assignment] = ()) -> tuple[Assignment, ...] | None:
        """Where the pods go among the devices of the live leases, all of them or None (see `placement.place`)."""
        return placement.place(pods, [lease.record for lease in self.leases], beside)

    async def why(self, request: AgentRequest | str) -> str:
        """One sentence: what is in the way of an open request, and when that clears. By the request's name."""
        name = request if isinstance(request, str) else request.name
        await self._until(lambda: self._listed or None, _NEVER_MS)
        for request_id, record in self._requests.items():
            if record.name == name:
                return self._sentence(request_id)
        for lease in self._leases.values():
            if lease.name == name and not lease.over.is_set():
                minutes = lease.remaining().total_seconds() / 60
                return f"The lease {name} is granted, and ends in {minutes:.1f} minutes."
        return f"No request {name} is open."

    def _sentence(self, request_id: str) -> str:
        return sentence(self._notices.get(request_id), self.clock.now_ms())

    async def _beat(self) -> None:
        waits = _Waits()
        while True:
            try:
                await self._broker.heartbeat(self.id)
                waits = _Waits()
                due_ms = self.clock.now_ms() + self._heartbeat_ms
                # Leases of a short grace need news more often.
                while (now_ms := self.clock.now_ms()) < (next_ms := min(due_ms, self._beat_again_ms(due_ms))):
                    await self._sleep(next_ms - now_ms)
            except BrokerUnavailable:
                await self.clock.sleep(waits.next_ms())
            except BrokerRefused as error:
                self._fail(error)
                return

    def _beat_again_ms(self, due_ms: int) -> int:
        graces = [lease.record.grace_ms for lease in self._leases.values() if lease.record.grace_ms]
        return due_ms - self._heartbeat_ms + max(FIRST_WAIT_MS, min(graces, default=_NEVER_MS) // 3)

    async def _follow(self) -> None:
        waits = _Waits()
        while True:
            try:
                async for notice in self._broker.follow(self.id):
                    waits = _Waits()
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
                self._notices[notice.id] = notice
                self._gone.discard(notice.id)
                if notice.id not in self._requests and notice.state != "Granted":
                    self._remove(notice.id)
            case RequestGone():
                self._notices.pop(notice.id, None)
                if notice.id in self._requests:
                    self._gone.add(notice.id)
            case LeaseNotice():
                self._lease_seen(notice)
            case LeaseGone():
                self._over(notice.id, notice.cause)
            case Listed():
                self._all_listed(notice)
            case Current():
                self._heard_ms = max(self._heard_ms, notice.at_ms)
        self._news.set()
        self._news = asyncio.Event()

    def _lease_seen(self, notice: LeaseNotice) -> None:
        lease = self._leases.get(notice.lease.id)
        if lease is None:
            wanted = notice.lease.id in self._requests or (self._adopt and not self._listed)
            lease = PlaneLease(self, notice, self._callbacks.get(notice.lease.id))
            lease.see(notice)
            if not wanted or self._closing:
                if notice.lease.id not in self._removing:
                    self._removing.add(notice.lease.id)
                    self._spawn(self._return(lease))
                return
            # A grant is news of its own: it was decided after all that is known.
            self._heard_ms = max(self._heard_ms, notice.lease.start_ms)
            self._leases[lease.id] = lease
            self._spawn_loop(self._keep(lease))
        lease.see(notice)

    async def _return(self, lease: PlaneLease) -> None:
        try:
            await lease.give_back()
        finally:
            self._removing.discard(lease.id)

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
        self._notices = {key: value for key, value in self._notices.items() if key in listed.requests}
        for request_id in self._requests:
            if request_id not in listed.requests and request_id not in self._leases:
                # The list may be older than the request: it is put once more.
                self._spawn(self._again(request_id))

    async def _again(self, request_id: str) -> None:
        record = self._requests.get(request_id)
        if record is not None:
            await self._retry(lambda: self._broker.put(self._requests.get(request_id, record)), _NEVER_MS)
            if request_id not in self._requests and request_id not in self._leases:
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
                    called = self._spawn(_called(lease.on_revoke, advice(lease, now_ms)))
                await self._sleep(lease.end_ms - now_ms)
        finally:
            if called is not None and not lease.over.is_set():
                called.cancel()

    def _remove(self, request_id: str) -> None:
        """Nobody here waits for the request any more."""
        if request_id not in self._removing:
            self._removing.add(request_id)
            self._spawn(self._withdraw(request_id))

    async def _withdraw(self, request_id: str) -> None:
        try:
            with suppress(BrokerRefused):
                await self._retry(lambda: self._broker.withdraw(self.id, request_id), _NEVER_MS)
        finally:
            self._removing.discard(request_id)
            self._gone.discard(request_id)

    async def act(self, lease: PlaneLease, action: LeaseAction) -> None:
        """Have the broker read the action, as long as the lease could be live."""
        if action.action == "return":
            self._leases.pop(lease.id, None)
        with suppress(BrokerUnavailable, BrokerRefused):
            await self._retry(lambda: self._broker.act(self.id, action), lease.record.end_ms)
        if action.action == "return":
            self._remove(lease.id)

    async def answer_to(self, lease: PlaneLease, number: int) -> str:
        """Why the action had no effect, once the broker has read it; "" where it had."""

        def answer() -> str | None:
            if lease.over.is_set():
                return "the lease is over"
            return f"={lease.notice.refused}" if lease.notice.answered >= number else None

        found = await self._until(answer, lease.record.end_ms)
        return "the broker did not answer" if found is None else found.removeprefix("=")

    async def _retry(self, call: Callable[[], Awaitable[None]], limit_ms: int) -> None:
        """Repeat a call until it is answered. Raises BrokerUnavailable once the limit has come."""
        waits = _Waits()
        while True:
            try:
                return await call()
            except BrokerUnavailable:
                if self.clock.now_ms() >= limit_ms:
                    raise
            await self.clock.sleep(waits.next_ms())

    async def _until(self, ready: Callable[[], T | None], limit_ms: int) -> T | None:
        """Wait for something; None where the limit comes first. Raises BrokerRefused where the plane has failed."""
        while True:
            if self._failed is not None:
                raise self._failed
            if (found := ready()) is not None:
                return found
            now_ms = self.clock.now_ms()
            if now_ms >= limit_ms:
                return None
            await self._sleep(limit_ms - now_ms)

    async def _sleep(self, ms: int) -> None:
        """Until there is news, or so much time has passed."""
        news = self._news
        if ms >= _NEVER_MS // 2:
            await news.wait()
            return
        waiting = [asyncio.ensure_future(news.wait()), asyncio.ensure_future(self.clock.sleep(ms))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    def _fail(self, error: BrokerRefused) -> None:
        self._failed = error
        self._news.set()
        self._news = asyncio.Event()

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Work that the end of the plane waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _spawn_loop(self, work: Coroutine[object, object, None]) -> None:
        """Work that the end of the plane stops."""
        task = asyncio.create_task(work)
        self._loops.append(task)
        task.add_done_callback(lambda done: self._loops.remove(done) if done in self._loops else None)


class _Waits:
    """The back-offs after errors in a row."""

    def __init__(self) -> None:
        self._ms = FIRST_WAIT_MS

    def next_ms(self) -> int:
        ms, self._ms = self._ms, min(2 * self._ms, MOST_WAIT_MS)
        return ms


def _key(notice: RequestNotice) -> tuple[str, int]:
    return notice.offers[0].id, notice.refused_number


def _answer(notice: RequestNotice, move: Move) -> Answer:
    if isinstance(move, Accept):
        return Answer(move.offer, "accept")
    if isinstance(move, CounterOffer):
        return Answer(notice.offers[0].id, "counter", move.alternative)
    return Answer(notice.offers[0].id, "decline")


async def _called(on_revoke: OnRevoke, notice: RevokeNotice) -> None:
    found = on_revoke(notice)
    if isawaitable(found):
        await found
