# SPDX-License-Identifier: Apache-2.0
"""A broker in memory for tests of agents: the real core, a virtual clock, and faults that a test scripts.

Rules
- Time moves only in `advance`, `run` and `real_time`. Between two moments of the first two every task runs until it
  waits, so a test gives the same result each time.
- What the core decides becomes true at once. Pods of a lease that is over are gone at once.
- A restart goes on from a checkpoint of the core, as a new leader would, and ends all that is followed.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.types import EndCause, GpuLease, LeaseAction, LeaseRequest, Plane
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, EndLease, Evict, LeaseStatus, RequestStatus
from dovetail.core.model import GPU, PODS, Maintenance, Node
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.core.state import State
from dovetail.plane.broker import (
    BrokerUnavailable,
    Current,
    LeaseGone,
    LeaseNotice,
    Listed,
    Notice,
    RequestGone,
    RequestNotice,
)
from dovetail.plane.fake_clock import FakeClock

_TURNS = 50
"""The most turns of the event loop in which all tasks come to wait."""
_MOST_STEPS = 1000
REAL_STEP_MS = 50
QUEUE = "agents"
T = TypeVar("T")


class FaultKind(Enum):
    LOST = "lost"
    """A call has no effect, and is not answered. News are lost: the connection is cut."""
    ANSWER_LOST = "answer lost"
    """A call has its effect, but is not answered."""
    DELAYED = "delayed"
    TWICE = "twice"
    """A call has its effect twice; news come twice."""


class FakeFault(Struct, frozen=True):
    """What happens to one call, or to one piece of news. `ms` is the delay."""

    kind: FaultKind
    ms: int = 0


FaultScript = Callable[[str], FakeFault | None]
"""Called with "heartbeat", "put", "withdraw", "act", "follow" or "news": what happens to this one."""


class _Stream:
    """What one follower has yet to read."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Notice | None] = asyncio.Queue()
        self.last_ms = 0


class FakeBroker:
    """`nodes`: the number of GPUs of each node by name, or records of nodes. A plane that is not in `planes` is made
    when it is first heard, without limits and with `grace_ms`. `faults` is asked about each call and each piece of
    news."""

    def __init__(
        self,
        nodes: Mapping[str, int] | Sequence[Node] = {"node-0": 8},
        clock: FakeClock | None = None,
        *,
        planes: Sequence[Plane] = (),
        grace_ms: int = 120_000,
        policy: Policy | None = None,
        faults: FaultScript | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.faults: FaultScript | None = faults
        self._grace_ms = grace_ms
        self._state = State(policy or Policy(searches_per_step=64))
        self._streams: dict[str, list[_Stream]] = {}
        self._shown: dict[str, dict[str, RequestNotice | LeaseNotice]] = {}
        self._causes: dict[str, EndCause] = {}
        self._answers: dict[str, tuple[str, int]] = {}
        self._refused: dict[str, str] = {}
        self._later: list[tuple[int, int, _Stream, Notice]] = []
        self._count = 0
        self.calls: list[str] = []
        """All calls that had an effect, in their order."""
        if isinstance(nodes, Mapping):
            nodes = [Node(name, ((GPU, gpus), (PODS, 110))) for name, gpus in nodes.items()]
        self._nodes = {node.name: node for node in nodes}
        queue = ev.QueueChanged(Queue(QUEUE, planes=True))
        self.submit(*[ev.NodeChanged(node) for node in nodes], queue, *[ev.PlaneChanged(plane) for plane in planes])

    # What agents call.

    async def heartbeat(self, plane: str) -> None:
        def beat() -> None:
            self._known(plane)
            self.submit(ev.PlaneHeartbeat(plane))
            self._send(plane, Current(self.clock.now_ms()))

        await self._call("heartbeat", beat)

    async def put(self, request: LeaseRequest) -> None:
        self._known(request.plane)
        await self._call("put", lambda: self.submit(ev.LeaseRequestChanged(request)))

    async def withdraw(self, plane: str, request: str) -> None:
        await self._call("withdraw", lambda: self.submit(ev.LeaseRequestRemoved(request)))

    async def act(self, plane: str, action: LeaseAction) -> None:
        await self._call("act", lambda: self.submit(ev.LeaseActed(action)))

    async def follow(self, plane: str) -> AsyncIterator[Notice]:
        fault = self.faults("follow") if self.faults is not None else None
        if fault is not None and fault.kind in (FaultKind.LOST, FaultKind.ANSWER_LOST):
            raise BrokerUnavailable("follow: not answered")
        self._known(plane)
        self.submit()
        stream = _Stream()
        shown = self._shown.setdefault(plane, self._views(plane))
        leases = [one for one in shown.values() if isinstance(one, LeaseNotice)]
        requests = [one for one in shown.values() if isinstance(one, RequestNotice)]
        listed = Listed(frozenset(one.id for one in requests), frozenset(one.lease.id for one in leases))
        first: list[Notice] = [*leases, *requests, listed, Current(self.clock.now_ms())]
        for notice in first:
            stream.queue.put_nowait(notice)
        self._streams.setdefault(plane, []).append(stream)
        try:
            while (news := await stream.queue.get()) is not None:
                yield news
            raise BrokerUnavailable("the connection was cut")
        finally:
            if stream in self._streams.get(plane, ()):
                self._streams[plane].remove(stream)

    # What tests call.

    async def advance(self, ms: int) -> None:
        """Let time pass; everything that is due happens at its time."""
        until_ms = self.clock.now_ms() + ms
        await self._settle()
        while (due_ms := self._next_ms()) is not None and due_ms <= until_ms:
            await self._at(due_ms)
        await self._at(until_ms)

    async def run(self, work: Coroutine[object, object, T], within_ms: int = 86_400_000) -> T:
        """The result of the work, with time passing whenever everything waits. Raises TimeoutError where it is not done
        within so long."""
        until_ms = self.clock.now_ms() + within_ms
        task = asyncio.ensure_future(work)
        try:
            await self._settle()
            while not task.done():
                due_ms = self._next_ms()
                if due_ms is None or due_ms > until_ms:
                    raise TimeoutError(f"not done within {within_ms} ms of the virtual clock")
                await self._at(due_ms)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def real_time(self) -> None:
        """Time passes as on this machine, in steps of REAL_STEP_MS, until this is cancelled."""
        begun_s, begun_ms = time.monotonic(), self.clock.now_ms()
        while True:
            await asyncio.sleep(REAL_STEP_MS / 1000)
            await self.advance(begun_ms + round(1000 * (time.monotonic() - begun_s)) - self.clock.now_ms())

    def submit(self, *events: ev.Event) -> None:
        """Events of the cluster (`core.events`): jobs, nodes, queues, planes."""
        queued, now_ms = list(events), self.clock.now_ms()
        for _ in range(_MOST_STEPS):
            decisions = step(self._state, queued, now_ms)
            queued = [event for decision in decisions for event in self._carry_out(decision)]
            due_ms = self._state.next_wake_ms()
            if not queued and not self._state.busy and (due_ms is None or due_ms > now_ms):
                break
        self._publish()

    def maintain(self, node: str) -> None:
        """The node goes into maintenance now: leases on it are revoked, with their grace."""
        self.submit(ev.NodeChanged(replace(self._nodes[node], maintenance=Maintenance("Evict", self.clock.now_ms()))))

    def repair(self, node: str) -> None:
        """The node is as it was at first."""
        self.submit(ev.NodeChanged(self._nodes[node]))

    def lose(self, node: str) -> None:
        """The node is gone."""
        self.submit(ev.NodeRemoved(node))

    def cut(self) -> None:
        """Every connection breaks; what was under way is lost."""
        self._later = []
        for streams in self._streams.values():
            for stream in streams:
                while not stream.queue.empty():
                    stream.queue.get_nowait()
                stream.queue.put_nowait(None)
            streams.clear()

    def restart(self) -> None:
        """A new process of the broker goes on from a checkpoint."""
        self._state = restore(self._state.policy, take(self._state, marks=True))
        self.cut()
        self.submit()

    @property
    def leases(self) -> tuple[GpuLease, ...]:
        """The live leases, as the broker has them."""
        return tuple([live.lease for live in self._state.leases.live.values()])

    @property
    def requests(self) -> tuple[str, ...]:
        """The ids of the requests that are not withdrawn."""
        return tuple(self._state.requests.negotiations)

    def end_ms(self, lease: str) -> int:
        """When a live lease ends; 0 where it is not live."""
        return self._state.leases.end_ms(lease)

    # The rest is how it works.

    async def _settle(self) -> None:
        # Only asyncio's own loop shows what is ready to run; on another one all turns pass.
        ready: Collection[object] | None = getattr(asyncio.get_running_loop(), "_ready", None)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
            if ready is not None and not ready:
                return

    async def _at(self, now_ms: int) -> None:
        self.clock.move(now_ms)
        due_ms = self._state.next_wake_ms()
        if due_ms is not None and due_ms <= self.clock.now_ms():
            self.submit()
        while self._later and self._later[0][0] <= self.clock.now_ms():
            _, _, stream, notice = heapq.heappop(self._later)
            stream.queue.put_nowait(notice)
        await self._settle()

    def _next_ms(self) -> int | None:
        times = [self.clock.next_ms(), self._state.next_wake_ms(), self._later[0][0] if self._later else None]
        return min([at_ms for at_ms in times if at_ms is not None], default=None)

    async def _call(self, name: str, effect: Callable[[], None]) -> None:
        fault = self.faults(name) if self.faults is not None else None
        kind = fault.kind if fault is not None else None
        if kind is FaultKind.LOST:
            await asyncio.sleep(0)
            raise BrokerUnavailable(f"{name}: not answered")
        if fault is not None and kind is FaultKind.DELAYED:
            await self.clock.sleep(fault.ms)
        for _ in range(2 if kind is FaultKind.TWICE else 1):
            self.calls.append(name)
            effect()
        await asyncio.sleep(0)
        if kind is FaultKind.ANSWER_LOST:
            raise BrokerUnavailable(f"{name}: the answer was lost")

    def _known(self, plane: str) -> None:
        if plane not in self._state.requests.planes:
            self.submit(ev.PlaneChanged(Plane(plane, QUEUE, grace_ms=self._grace_ms, idle_ms=0)))

    def _carry_out(self, decision: Decision) -> list[ev.Event]:
        match decision:
            case Bind():
                pod = self._state.workloads.pods[decision.uid]
                bound = replace(
                    pod, node=decision.node, bound_ms=self.clock.now_ms(), devices=decision.devices,
                    instances=decision.instances, recorded=True,
                )  # fmt: skip
                return [ev.PodChanged(bound)]
            case RequestStatus(refusal=refusal) if refusal is not None and refusal.reason.code in _OF_ANSWERS:
                number = self._answers.get(decision.request, ("", 0))[1]
                self._answers[decision.request] = refusal.head, number + 1
            case LeaseStatus():
                self._refused[decision.lease.id] = decision.refused
            case EndLease():
                self._causes[decision.lease] = decision.cause
                return [ev.PodRemoved(uid) for uid in decision.uids]
            case Evict():
                return [ev.PodRemoved(uid) for uid in decision.uids]
            case _:
                pass
        return []

    def _views(self, plane: str) -> dict[str, RequestNotice | LeaseNotice]:
        """What a plane may see now: leases first."""
        found: dict[str, RequestNotice | LeaseNotice] = {}
        for live in self._state.leases.live.values():
            if live.lease.plane == plane:
                refused = self._refused.get(live.lease.id, "")
                found[f"lease {live.lease.id}"] = LeaseNotice(live.lease, live.state.value, live.action, refused)
        for one in self._state.requests.negotiations.values():
            if one.request.plane == plane:
                refusal, answer = one.reported, self._answers.get(one.request.id, ("", 0))
                expected = refusal.expected if refusal is not None else None
                found[f"request {one.request.id}"] = RequestNotice(
                    one.request.id, one.state.value, one.offers, one.until_ms,
                    refusal.reason.code if refusal is not None else "",
                    refusal.reason.text if refusal is not None else "",
                    expected.start_ms if expected is not None else 0, *answer,
                )  # fmt: skip
        return found

    def _publish(self) -> None:
        """Send each plane what has changed for it."""
        for plane in list(self._shown):
            before, after = self._shown[plane], self._views(plane)
            if before == after:
                continue
            self._shown[plane] = after
            for key, notice in after.items():
                if before.get(key) != notice:
                    self._send(plane, notice)
            for key in before:
                if key not in after:
                    kind, _, name = key.partition(" ")
                    gone = LeaseGone(name, self._causes[name]) if kind == "lease" else RequestGone(name)
                    self._send(plane, gone)
            self._send(plane, Current(self.clock.now_ms()))

    def _send(self, plane: str, notice: Notice) -> None:
        for stream in list(self._streams.get(plane, ())):
            fault = self.faults("news") if self.faults is not None else None
            due_ms = max(stream.last_ms, self.clock.now_ms())
            if fault is not None and fault.kind in (FaultKind.LOST, FaultKind.ANSWER_LOST):
                self._streams[plane].remove(stream)
                stream.queue.put_nowait(None)
                continue
            if fault is not None and fault.kind is FaultKind.DELAYED:
                due_ms = max(due_ms, self.clock.now_ms() + fault.ms)
            stream.last_ms = due_ms
            for _ in range(2 if fault is not None and fault.kind is FaultKind.TWICE else 1):
                if due_ms <= self.clock.now_ms():
                    stream.queue.put_nowait(notice)
                else:
                    self._count += 1
                    heapq.heappush(self._later, (due_ms, self._count, stream, notice))


_OF_ANSWERS = ("OfferGone", "CounterOfferRefused")
