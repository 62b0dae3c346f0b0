# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between a client and the API, at the command of a test or a demonstration.

A `Fault` happens to the next `times` requests that it matches, in the order in which faults were added, one fault a
request. The rest are switches. All of it can be changed while requests are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Literal

from msgspec import Struct

from dovetail.apiserver.connections import Connections, WatchConnections
from dovetail.apiserver.resources import ServedResource
from dovetail.apiserver.store import Store
from dovetail.apiserver.watches import WatchFlow

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_HEARTBEATS = frozenset({"leases"})
Effect = Literal["answer", "delay", "drop-before", "drop-after"]


class Fault(Struct):
    """A fault, and the requests that it applies to.

    answer
        the request is not carried out; the reply has `status` and `message`, and a Retry-After header if
        `retry_after_s` is set.
    delay
        it is carried out after `delay_s`.
    drop-before, drop-after
        the connection breaks before, or after, the request is carried out, and there is no reply.

    `verb` is a method, or WATCH; "" matches any. `resource` is a plural, with the subresource if there is one
    ("pods/binding"); "" matches any. `name` is a regular expression that the whole object name must match.
    """

    effect: Effect
    verb: str = ""
    resource: str = ""
    name: str = ".*"
    times: int = 1
    status: int = 500
    message: str = ""
    retry_after_s: int = 0
    delay_s: float = 0.0

    def matches(self, verb: str, resource: str, name: str) -> bool:
        return (
            self.times > 0
            and self.verb in ("", verb)
            and self.resource in ("", resource)
            and re.fullmatch(self.name, name) is not None
        )


class Faults(WatchFlow):
    """The faults of one server."""

    def __init__(self, store: Store, connections: Connections, watches: WatchConnections) -> None:
        self._store = store
        self._connections = connections
        self._watches = watches
        self._faults: list[Fault] = []
        self._lost_events: dict[str, int] = {}
        self._writes_left: int | None = None
        self._last_effect: Effect = "drop-before"
        self.cut_off = asyncio.Event()
        """Set when `cut_off_at_write` has happened."""
        self.lose_bookmarks = False
        self.watches_flow = asyncio.Event()
        """While clear, watches stay open and send nothing: what a half-open connection looks like."""
        self.watches_flow.set()

    def add(self, fault: Fault) -> Fault:
        """Add a fault. Its `times` counts down with each use."""
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Ends all faults but a server that has gone away."""
        self._faults.clear()
        self._lost_events.clear()
        self._writes_left = None
        self.cut_off.clear()
        self.lose_bookmarks = False
        self.watches_flow.set()

    def next_for(self, verb: str, resource: str, name: str) -> Fault | None:
        """The fault for this request; it counts as used."""
        if self.cut_off.is_set():
            return Fault("drop-before")
        if self._writes_left is not None and verb in _WRITES and resource not in _HEARTBEATS:
            self._writes_left -= 1
            if self._writes_left < 0:
                self.cut_off.set()
                self._watches.abort()
                return Fault(self._last_effect)
        fault = next((fault for fault in self._faults if fault.matches(verb, resource, name)), None)
        if fault is not None:
            fault.times -= 1
        return fault

    def cut_off_at_write(self, number: int, *, carried_out: bool) -> None:
        """The write of this number from now on (1 is the next) is carried out or not, and gets no reply; from then on
        no request gets one, until `clear`. To the server a client that is killed at that write looks the same. Writes
        of Leases are not counted."""
        self._writes_left, self._last_effect = number - 1, "drop-after" if carried_out else "drop-before"

    async def flows_before(self, end: float) -> bool:
        if not self.watches_flow.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await self.watches_flow.wait()
        return self.watches_flow.is_set()

    def lose_events(self, plural: str, count: int) -> None:
        """Drop the next `count` watch events of a resource for the watchers that would receive them."""
        self._lost_events[plural] = count

    def loses_event(self, resource: ServedResource) -> bool:
        """Whether the event that is about to be sent is lost, counted."""
        left = self._lost_events.get(resource.plural, 0)
        if left:
            self._lost_events[resource.plural] = left - 1
        return left > 0

    def break_watches(self) -> None:
        """Breaks the connections of all open watches."""
        self._watches.abort()

    def expire_history(self) -> None:
        """Watches from any version known so far, and later pages of lists, get 410. Open watches go on."""
        self._store.forget_history()

    async def go_away(self) -> None:
        """Breaks all connections and refuses new ones until `come_back`."""
        await self._connections.close()

    async def come_back(self) -> None:
        """Listens again, on the same port."""
        await self._connections.open()
