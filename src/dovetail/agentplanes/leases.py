# SPDX-License-Identifier: Apache-2.0
"""One side of the carrier: the leases of a plane, and its requests to the broker.

Rules
- A request, and with it its lease, is named after its gang: so a later process knows for which gang a lease is.
- Nothing of the broker is waited for: each request, renewal and return is a task of its own, and `changed` is called
  when it has an outcome.
- Leases outlive the process: the next one adopts them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine

from dovetail.agentplanes.facts import CarriedLease, OpenRequest, RequestKey
from dovetail.plane.agent_plane import AgentPlane
from dovetail.plane.broker import BrokerRefused
from dovetail.plane.lease import NotGranted, PlaneLease, RenewalRefused
from dovetail.plane.options import AgentRequest, Option
from dovetail.plane.waiting import NEVER_MS

_RETRY_MS, _MOST_RETRY_MS = 5_000, 300_000
_MINUTE_MS = 60_000
_NAME = re.compile(r"gang-([0-9a-f]{12})(?:-.*)?")


class PlaneLeases:
    """Leases and requests of one plane. `known` is set once the broker has listed what there is."""

    def __init__(self, plane: AgentPlane, changed: Callable[[], None]) -> None:
        self.known = False
        self.requests: dict[RequestKey, OpenRequest] = {}
        self._plane = plane
        self._changed = changed
        self._held: dict[str, PlaneLease] = {}
        self._refused: dict[str, tuple[int, str]] = {}
        """By lease the end that could not be put off, and why."""
        self._unused: dict[str, int] = {}
        self._failures: dict[RequestKey, int] = {}
        """Requests that failed in a row."""
        self._asking: dict[RequestKey, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BrokerRefused | None = None

    def start(self) -> None:
        self._spawn(self._adopt())

    async def end(self) -> None:
        """Nothing goes on after this; leases stay."""
        tasks = [*self._tasks, *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _adopt(self) -> None:
        try:
            await self._plane.listed()
        except BrokerRefused as error:
            self.failure = error
            self._changed()
            return
        for lease in self._plane.leases:
            self._hold(lease)
        self.known = True
        self._changed()
        try:
            await self._plane.until(lambda: None, NEVER_MS)
        except BrokerRefused as error:
            self.failure = error
            self._changed()

    def facts(self) -> list[CarriedLease]:
        """All leases of this plane that are, or were, held by this process or adopted."""
        return [self._fact(lease) for lease in self._held.values()]

    def _fact(self, lease: PlaneLease) -> CarriedLease:
        record, revocation = lease.record, lease.revocation
        named = _NAME.fullmatch(record.name)
        end_ms, why = self._refused.get(record.name, (0, ""))
        return CarriedLease(
            record,
            named[1] if named else "",
            lease.live,
            (lease.cause.value if lease.cause is not None else "Lost") if lease.over.is_set() else "",
            lease.end_ms,
            why if end_ms == lease.end_ms else "",
            revocation.cause.value if revocation is not None else "",
            revocation.message if revocation is not None else "",
            self._unused.get(record.name, 0),
        )

    def forget(self, used: frozenset[str], unused: frozenset[str]) -> None:
        """Note which leases no pod needs, and drop those that are over and that no pod on the host names."""
        now_ms = self._plane.clock.now_ms()
        self._unused = {name: self._unused.get(name, now_ms) for name in unused}
        for name in [name for name, lease in self._held.items() if lease.over.is_set() and name not in used]:
            del self._held[name]
            self._refused.pop(name, None)

    def negotiate(self, key: RequestKey, pods: int) -> None:
        """Ask for devices for so many pods."""
        self.requests[key] = OpenRequest(pods)
        self._asking[key] = asyncio.create_task(self._ask(key, pods))

    async def _ask(self, key: RequestKey, pods: int) -> None:
        try:
            self._hold(await self._plane.negotiate(_request(key, pods)))
            self.requests.pop(key, None)
            self._failures.pop(key, None)
        except NotGranted as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            wait_ms = min(_MOST_RETRY_MS, _RETRY_MS << min(failures - 1, 10))
            self.requests[key] = OpenRequest(pods, str(error), True, self._plane.clock.now_ms() + wait_ms)
        except BrokerRefused as error:
            self.failure = error
            self.requests.pop(key, None)
        finally:
            if self._asking.get(key) is asyncio.current_task():
                del self._asking[key]
            self._changed()

    def withdraw(self, key: RequestKey) -> None:
        """Nothing is asked any more."""
        self.requests.pop(key, None)
        self._failures.pop(key, None)
        task = self._asking.pop(key, None)
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.cancel()

    async def explain(self) -> None:
        """Bring up to date why the open requests wait."""
        for key, one in list(self.requests.items()):
            if not one.failed:
                why = (await self._plane.why(_name(key))).partition(";")[0]
                if self.requests.get(key) is one:
                    self.requests[key] = OpenRequest(one.pods, why)

    def renew(self, name: str, duration_ms: int) -> None:
        """Ask for a later end, once for each end."""
        lease = self._held.get(name)
        if lease is not None and self._refused.get(name, (0, ""))[0] != lease.end_ms:
            self._refused[name] = lease.end_ms, ""
            self._spawn(self._renew(lease, name, duration_ms, lease.end_ms))

    async def _renew(self, lease: PlaneLease, name: str, duration_ms: int, end_ms: int) -> None:
        try:
            await lease.renew(duration_ms / _MINUTE_MS)
        except RenewalRefused as error:
            self._refused[name] = end_ms, str(error)
        except BrokerRefused as error:
            self.failure = error
        self._changed()

    def give_back(self, name: str) -> None:
        """Return it. No pod of the host may name it."""
        lease = self._held.pop(name, None)
        self._refused.pop(name, None)
        if lease is not None:
            self._spawn(lease.give_back())

    def _hold(self, lease: PlaneLease) -> None:
        self._held[lease.name] = lease
        self._spawn(self._watch(lease))

    async def _watch(self, lease: PlaneLease) -> None:
        """Have it decided again when the lease is revoked, and when it is over."""
        revoked = asyncio.ensure_future(lease.revoked.wait())
        over = asyncio.ensure_future(lease.over.wait())
        try:
            await asyncio.wait([revoked, over], return_when=asyncio.FIRST_COMPLETED)
            self._changed()
            await over
            self._changed()
        finally:
            revoked.cancel()
            over.cancel()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _name(key: RequestKey) -> str:
    return f"gang-{key.gang}"


def _request(key: RequestKey, pods: int) -> AgentRequest:
    want = key.want
    alternative = want.alternative(pods)
    option = Option(
        gpus=alternative.count,
        same_node=want.gpus,
        model=want.models,
        mig=want.resource.removeprefix("nvidia.com/mig-") if want.resource.startswith("nvidia.com/mig-") else "",
        minutes=want.duration_ms / _MINUTE_MS,
        service=want.service,
        cpu=want.cpu_milli / 1000,
        host_memory_gib=want.memory_bytes / 2**30,
    )
    return AgentRequest(options=(option,), name=_name(key))
