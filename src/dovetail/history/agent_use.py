# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs, read from the agents of all nodes (`docs/reference/gpu-use.md`).

Rules
- Each agent is asked once in a period, at a time of its own, so that requests are spread evenly; at most `_AT_ONCE` at
  a time. An agent that does not answer delays no other one. An agent keeps a day, so nothing is lost by a failure.
- It is asked for the hours since the one in which it answered last: what it answers for an hour replaces what it
  answered before.
- A node is not trusted with more than itself: what it writes about other nodes, about GPUs or pods that are not its
  own, or about times that cannot be, is left out and counted. So are answers of more than `_MOST_BYTES`.
"""

from __future__ import annotations

import asyncio
import heapq
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

import aiohttp
from msgspec.json import Decoder

from dovetail.core.json_text import JsonError, decode_json_by
from dovetail.history.records import HOUR_MS, USE_BINS, UseHour

PERIOD_S = 60.0
_TIMEOUT_S = 10.0
_AT_ONCE = 32
_MOST_BYTES = 8 << 20
_MOST_MS = 2 * HOUR_MS
"""Of an hour; it can be longer than an hour where a clock was set back."""
_MOST_MIB = 1 << 24
_MOST_RATE = 10**14
"""Bytes per second, or thousandths."""
_MOST_NAMES = 32
_DECODER = Decoder(list[UseHour])

MayUse = Callable[[str, str, str], bool]
"""Whether a node may have seen this GPU, by UUID, used by the pod of this uid ("" for none)."""


class AgentUseReader:
    """Asks the agents. `agents` returns the addresses by node, as http://10.0.0.7:9400; `take` gets what was accepted.
    `clock_ms` is the wall clock. `faults` has why a node was not read, by node."""

    def __init__(
        self,
        agents: Callable[[], Mapping[str, str]],
        may_use: MayUse,
        take: Callable[[list[UseHour]], Awaitable[None]],
        clock_ms: Callable[[], int],
        period_s: float = PERIOD_S,
    ) -> None:
        self._agents, self._may_use, self._take = agents, may_use, take
        self._clock_ms, self._period_s = clock_ms, period_s
        self._since_ms: dict[str, int] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self.faults: dict[str, str] = {}
        self.refused: Counter[str] = Counter()
        """Records that were left out, by node."""

    async def run(self) -> None:
        """Ask until cancelled."""
        loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=_AT_ONCE, force_close=True)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False) as session,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                begun_s = loop.time()
                agents = dict(self._agents())
                self._forget(agents.keys())
                due = [(phase(node) * self._period_s, node) for node in agents]
                heapq.heapify(due)
                while due:
                    after_s, node = heapq.heappop(due)
                    await asyncio.sleep(begun_s + after_s - loop.time())
                    # A request that is still under way is not repeated.
                    if node not in self._running:
                        task = tasks.create_task(self._read(session, node, agents[node]))
                        self._running[node] = task
                        task.add_done_callback(lambda _, node=node: self._running.pop(node, None))  # type: ignore[misc]
                await asyncio.sleep(max(0.0, begun_s + self._period_s - loop.time()))

    def _forget(self, nodes: Iterable[str]) -> None:
        """Forget nodes that are gone."""
        there = set(nodes)
        for known in (self._since_ms, self.faults, self.refused):
            for node in known.keys() - there:
                del known[node]

    async def _read(self, session: aiohttp.ClientSession, node: str, address: str) -> None:
        asked_ms = self._clock_ms()
        since_ms = self._since_ms.get(node, 0)
        try:
            async with (
                self._places,
                session.get(f"{address}/use", params={"since": str(since_ms)}, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    self.faults[node] = f"{address}/use answers {answer.status}"
                    return
                body = await _body(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.faults[node] = f"{address}/use: {error or type(error).__name__}"
            return
        if body is None:
            self.faults[node] = f"{address}/use answers more than {_MOST_BYTES} bytes"
            return
        try:
            hours = decode_json_by(_DECODER, body)
        except JsonError as error:
            self.faults[node] = f"{address}/use: {error}"
            return
        accepted = [one for one in hours if credible(one, node, asked_ms) and self._may_use(node, one.gpu, one.pod_uid)]
        if len(accepted) < len(hours):
            self.refused[node] += len(hours) - len(accepted)
        if accepted:
            await self._take(accepted)
        self.faults.pop(node, None)
        self._since_ms[node] = asked_ms - asked_ms % HOUR_MS


async def _body(answer: aiohttp.ClientResponse) -> bytes | None:
    """The body; None if it is too long."""
    found = bytearray()
    async for part in answer.content.iter_any():
        found += part
        if len(found) > _MOST_BYTES:
            return None
    return bytes(found)


def phase(node: str) -> float:
    """When in a period the agent of a node is asked, from 0 to 1."""
    return zlib.crc32(node.encode()) / 2**32


def credible(hour: UseHour, node: str, now_ms: int) -> bool:
    """Whether the agent of a node can have measured this: its own record, of a time that has come, with amounts that
    fit each other."""
    ms = hour.measured_ms
    amounts = (hour.use, hour.idle_ms, hour.memory_peak_mib, *hour.histogram, *hour.activity.values())
    return (
        hour.source.startswith(f"{node}/")
        and len(hour.source) <= len(node) + 20
        and hour.hour_ms % HOUR_MS == 0
        and 0 <= hour.hour_ms <= now_ms + HOUR_MS
        and 0 <= ms <= _MOST_MS
        and min(amounts) >= 0
        and hour.use <= 1000 * ms
        and hour.idle_ms <= ms
        and hour.memory_peak_mib <= _MOST_MIB
        and len(hour.histogram) == USE_BINS
        and sum(hour.histogram) == ms
        and len(hour.activity) <= _MOST_NAMES
        and all(len(name) <= _MOST_NAMES and value <= _MOST_RATE * ms for name, value in hour.activity.items())
        and (not hour.used_until_ms or hour.hour_ms <= hour.used_until_ms <= hour.hour_ms + HOUR_MS)
    )
