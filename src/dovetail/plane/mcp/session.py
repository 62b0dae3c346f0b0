# SPDX-License-Identifier: Apache-2.0
"""What a model does with its plane: the tools, as methods that take typed arguments and return short answers.

Rules
- At a time MOST_OPEN requests are open, MOST_HELD requests and leases are there, and MOST_WAITING calls wait for their
  answers, at most. Calls are counted: CALLS_AT_ONCE, and CALLS_PER_SECOND after them.
- A wait ends with news for its request, or after the seconds that the call names. What was asked goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from dovetail.plane.agent_plane import AgentPlane
from dovetail.plane.broker import BrokerRefused
from dovetail.plane.lease import PlaneLease, RenewalRefused
from dovetail.plane.mcp import arguments as args
from dovetail.plane.mcp import descriptions, progress
from dovetail.plane.mcp.answers import ToolAnswer, ToolError, ToolErrorCode, answer_of
from dovetail.plane.mcp.notices import LeaseWarnings
from dovetail.plane.mcp.quoting import clean, quoted
from dovetail.plane.mcp.requests import SteeredRequest
from dovetail.plane.policies import CounterOffer, KeepWaiting
from dovetail.plane.waiting import NEVER_MS

MOST_OPEN = 8
MOST_HELD = 16
MOST_WAITING = 8
MOST_KNOWN = 64
"""Requests that can be named, with those that are over: the oldest of these are forgotten."""
CALLS_AT_ONCE = 60
CALLS_PER_SECOND = 2
ACTION_SECONDS = 10
"""How long renew and give_back wait for the broker."""
_MINUTE_MS = 60_000


class SteadyClock:
    """The time of this machine, which is never set. The broker's is not: another one that goes on has another clock."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


class AgentSession:
    """The session of one agent. Use it as `async with`, inside that of the plane. `changed` is called when the model
    should hear something that it did not ask for. `clock` measures how long calls wait."""

    def __init__(
        self, plane: AgentPlane, changed: Callable[[], None] = lambda: None, clock: SteadyClock | None = None
    ) -> None:
        self.plane = plane
        self._clock = clock or SteadyClock()
        self.warnings = LeaseWarnings(changed)
        self._requests: dict[str, SteeredRequest] = {}
        self._count = 0
        self._waiting = 0
        self._calls_left = float(CALLS_AT_ONCE)
        self._counted_ms = 0
        self._tasks: set[asyncio.Task[object]] = set()

    async def __aenter__(self) -> AgentSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*[request.stop() for request in self._requests.values()])
        # What is under way goes on: the plane waits for the broker in its end.

    @property
    def now_ms(self) -> int:
        return self.plane.clock.now_ms()

    @contextmanager
    def counted_call(self) -> Iterator[None]:
        """A call is served while the block runs. Raises ToolError where calls come too fast, or too many wait."""
        if self._waiting >= MOST_WAITING:
            raise ToolError(
                ToolErrorCode.TOO_MANY_WAIT,
                f"{self._waiting} calls wait for their answers; {MOST_WAITING} may",
                "wait for these answers first",
            )
        self._count_call()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def _count_call(self) -> None:
        now_ms = self._clock.now_ms()
        more = (now_ms - self._counted_ms) / 1000 * CALLS_PER_SECOND
        self._calls_left, self._counted_ms = min(CALLS_AT_ONCE, self._calls_left + more), now_ms
        if self._calls_left < 1:
            raise ToolError(
                ToolErrorCode.TOO_MANY_CALLS,
                f"more than {CALLS_PER_SECOND} calls per second, after {CALLS_AT_ONCE} at once",
                "wait a few seconds; use wait_seconds instead of asking again and again",
            )
        self._calls_left -= 1

    async def ask(self, asked: args.AskArguments) -> ToolAnswer:
        open_requests = [one.id for one in self._requests.values() if one.open]
        if len(open_requests) >= MOST_OPEN:
            raise ToolError(
                ToolErrorCode.TOO_MANY_REQUESTS,
                f"{len(open_requests)} requests are open: {', '.join(open_requests)}; {MOST_OPEN} may be",
                "answer their offers, or withdraw one; one request takes several options",
            )
        held = self._held()
        if len(open_requests) + len(held) >= MOST_HELD:
            raise ToolError(
                ToolErrorCode.TOO_MANY_REQUESTS,
                f"{len(held)} leases are held and {len(open_requests)} requests are open; {MOST_HELD} together may be",
                "give a lease back with give_back",
            )
        self._count += 1
        request_id = f"r{self._count}"
        request = SteeredRequest(
            self.plane, request_id, clean(asked.name), args.request_of(asked, request_id), self.warnings
        )
        self._requests[request_id] = request
        self._forget()
        request.start(round(_MINUTE_MS * asked.keep_minutes))
        await self._wait(lambda: bool(request.turns or request.reason), asked.wait_seconds)
        return progress.answer_for(request, self.now_ms)

    async def offers(self, asked: args.OffersArguments) -> ToolAnswer:
        request = self._request(asked.request)
        await self._wait(lambda: request.waiting or not request.open, asked.wait_seconds)
        return progress.answer_for(request, self.now_ms)

    async def accept(self, asked: args.AcceptArguments) -> ToolAnswer:
        request_id = asked.offer.partition(".")[0]
        request = self._open_request(request_id, "offer")
        if request.offer(asked.offer) is None:
            raise ToolError(
                ToolErrorCode.UNKNOWN_OFFER,
                f"{request_id} has no offer {asked.offer}",
                f"read them with offers(request={request_id})",
                "offer",
            )
        if request.reserved and not request.offers:
            raise ToolError(
                ToolErrorCode.NO_OFFERS,
                f"{request_id} has accepted a later start already: {quoted(request.sentence)}",
                f"wait for it with offers(request={request_id}, wait_seconds=50), or withdraw it and ask again",
                "offer",
            )
        turns = request.turns
        request.accept(asked.offer)
        await self._wait(lambda: request.turns > turns or request.reserved, asked.wait_seconds)
        return progress.answer_for(request, self.now_ms)

    async def counter(self, asked: args.CounterArguments) -> ToolAnswer:
        request = self._open_request(asked.request, "request")
        option = args.option_of(asked.option, "option")
        self._require_offers(request)
        turns = request.turns
        request.answer(CounterOffer(option.alternative(self.now_ms)))
        await self._wait(
            lambda: request.turns > turns or (bool(request.reason) and not request.answered), asked.wait_seconds
        )
        return progress.answer_for(request, self.now_ms)

    async def decline(self, asked: args.DeclineArguments) -> ToolAnswer:
        request = self._open_request(asked.request, "request")
        self._require_offers(request)
        turns = request.turns
        request.answer(KeepWaiting())
        await self._wait(lambda: request.turns > turns, asked.wait_seconds)
        return progress.answer_for(request, self.now_ms)

    async def leases(self, asked: args.LeasesArguments) -> ToolAnswer:
        for number, lease_id in enumerate(asked.acknowledge):
            self._lease(lease_id, f"acknowledge[{number}]")
        self.warnings.done(asked.acknowledge)
        if asked.lease:
            request, lease = self._lease(asked.lease, "lease")
            line = descriptions.lease_line(request.id, lease, request.note, descriptions.MOST_NODES)
            content = descriptions.lease_content(request.id, lease, request.note, descriptions.MOST_NODES)
            return answer_of([line], {"leases": [content]})
        return self.list_leases()

    def list_leases(self) -> ToolAnswer:
        """All that is held, each with a part of the nodes that one answer may name."""
        held = self._held()
        if not held:
            return answer_of(["No lease is held. Ask for one with ask."], {"leases": []})
        most = max(1, descriptions.MOST_NODES // len(held))
        lines = [descriptions.lease_line(one.id, lease, one.note, min(most, 4)) for one, lease in held]
        content = [descriptions.lease_content(one.id, lease, one.note, most) for one, lease in held]
        return answer_of([f"{len(held)} held:", *lines], {"leases": content})

    async def renew(self, asked: args.RenewArguments) -> ToolAnswer:
        request, lease = self._live(asked.lease)
        try:
            done = await self._within(lease.renew(asked.minutes))
        except RenewalRefused as error:
            raise ToolError(
                ToolErrorCode.RENEWAL_REFUSED,
                f"{request.id} ends when it did before: {quoted(str(error))}",
                "save a checkpoint before its end, or ask for another lease; a renewal is for the last third of a term",
            ) from error
        if not done:
            return self._under_way(request, "renewal")
        self.warnings.done([request.id])
        left = descriptions.span(round(lease.remaining().total_seconds() * 1000))
        content = descriptions.lease_content(request.id, lease, request.note, 4)
        return answer_of([f"Renewed: {request.id} ends in {left}."], {"lease": content})

    async def give_back(self, asked: args.GiveBackArguments) -> ToolAnswer:
        request, lease = self._live(asked.lease)
        done = await self._within(lease.give_back())
        self.warnings.done([request.id])
        if not done:
            return self._under_way(request, "return")
        return answer_of([f"Returned: {request.id}. Its devices must not be used."], {"returned": request.id})

    async def why(self, asked: args.WhyArguments) -> ToolAnswer:
        return progress.answer_for(self._request(asked.request), self.now_ms)

    async def withdraw(self, asked: args.WithdrawArguments) -> ToolAnswer:
        request = self._open_request(asked.request, "request")
        await request.close()
        if request.lease is not None:
            return progress.answer_for(request, self.now_ms)
        return answer_of([f"Withdrawn: {request.id}."], {"withdrawn": request.id})

    # The rest is how it works.

    def _request(self, request_id: str, field: str = "request") -> SteeredRequest:
        request = self._requests.get(request_id)
        if request is None:
            known = ", ".join(list(self._requests)[-10:]) or "none"
            raise ToolError(
                ToolErrorCode.UNKNOWN_REQUEST,
                f"this session has no request {request_id}; it has: {known}",
                "use one of these, or ask",
                field,
            )
        return request

    def _open_request(self, request_id: str, field: str) -> SteeredRequest:
        request = self._request(request_id, field)
        if not request.open:
            what = f"ended: {quoted(request.ended)}" if request.ended else f"granted: {request.id} is a lease now"
            next_step = "ask again" if request.ended else f"see leases(lease={request.id}), or give_back"
            raise ToolError(ToolErrorCode.REQUEST_CLOSED, f"{request.id} is {what}", next_step, field)
        return request

    def _require_offers(self, request: SteeredRequest) -> None:
        if request.waiting:
            return
        if request.answered:
            raise ToolError(
                ToolErrorCode.ANSWER_UNDER_WAY,
                f"an answer for {request.id} is on its way to the broker",
                f"see what came of it with offers(request={request.id})",
                "request",
            )
        raise ToolError(
            ToolErrorCode.NO_OFFERS,
            f"no offer for {request.id} waits for an answer: {quoted(request.sentence)}",
            f"wait for one with offers(request={request.id}, wait_seconds=30)",
            "request",
        )

    def _held(self) -> list[tuple[SteeredRequest, PlaneLease]]:
        found = [(one, one.lease) for one in self._requests.values()]
        return [(one, lease) for one, lease in found if lease is not None and not lease.over.is_set()]

    def _lease(self, lease_id: str, field: str) -> tuple[SteeredRequest, PlaneLease]:
        request = self._requests.get(lease_id)
        if request is None or request.lease is None:
            known = ", ".join([one.id for one, _ in self._held()]) or "none"
            raise ToolError(
                ToolErrorCode.UNKNOWN_LEASE,
                f"this session has no lease {lease_id}; it holds: {known}",
                "see leases",
                field,
            )
        return request, request.lease

    def _live(self, lease_id: str) -> tuple[SteeredRequest, PlaneLease]:
        request, lease = self._lease(lease_id, "lease")
        if lease.over.is_set():
            raise ToolError(
                ToolErrorCode.LEASE_OVER,
                f"the lease {lease_id} is over: {lease.cause}",
                "do not use its devices; ask for another lease",
                "lease",
            )
        return request, lease

    def _forget(self) -> None:
        for request_id, request in list(self._requests.items()):
            if len(self._requests) <= MOST_KNOWN:
                return
            if request.ended or (request.lease is not None and request.lease.over.is_set()):
                del self._requests[request_id]

    async def _wait(self, ready: Callable[[], bool], seconds: float) -> None:
        news = asyncio.ensure_future(self.plane.until(lambda: ready() or None, NEVER_MS))
        limit = asyncio.ensure_future(self._clock.sleep(round(1000 * seconds)))
        try:
            waiting: list[asyncio.Future[Any]] = [news, limit]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if news.done():
                news.result()
        except BrokerRefused as error:
            raise ToolError(
                ToolErrorCode.BROKER_REFUSED,
                f"the broker refuses this agent: {quoted(str(error))}",
                "a person has to set up the control plane; nothing can be asked until then",
            ) from error
        finally:
            news.cancel()
            limit.cancel()
            await asyncio.gather(news, limit, return_exceptions=True)

    async def _within(self, work: Coroutine[object, object, object]) -> bool:
        """Whether it was done in time. It goes on if not."""
        task: asyncio.Task[object] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        await self._wait(task.done, ACTION_SECONDS)
        if not task.done():
            return False
        task.result()
        return True

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
        self.plane.wake()

    def _under_way(self, request: SteeredRequest, what: str) -> ToolAnswer:
        line = f"The broker has not answered the {what} of {request.id} yet; it goes on. Next: see leases."
        return answer_of([line], {"under_way": what, "lease": request.id})
