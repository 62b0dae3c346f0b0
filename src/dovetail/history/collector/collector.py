# SPDX-License-Identifier: Apache-2.0
"""Follows the state of the cluster as the scheduler does, decides nothing, and writes what changed.

Rules
- Changes are taken in as they come, so that short pods are seen; what they mean is written every `write_s`.
- What could not be written is kept and tried again, before what came since. Beyond `_MOST` records the process ends
  with the store's error.
- One thread at a time uses the store. A task that is cancelled ends only after its thread, so that the store can be
  closed then.
- A clock that goes back by less than `_JITTER_MS` stands still instead; more is a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from dovetail.core import events as ev
from dovetail.core.cycle import enter
from dovetail.core.events import Event
from dovetail.core.policy import Policy
from dovetail.core.queues.node_gpus import ListedGpu
from dovetail.core.state import State
from dovetail.history.collector import metrics
from dovetail.history.collector.agents import Reported
from dovetail.history.collector.gpu_lists import gpus_of
from dovetail.history.collector.pod_facts import fact_of
from dovetail.history.pod_records import PodFact
from dovetail.history.records import HistoryBatch, UseHour
from dovetail.history.store import StoreError
from dovetail.history.timeline import Seen, Timeline
from dovetail.history.writing import Collected
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.changes import Change
from dovetail.kube.api.resources import Resource
from dovetail.kube.informers import Informers
from dovetail.kube.threads import run_to_end

_MOST = 500_000
_JITTER_MS = 1000
_GAP_MS = 120_000
"""A longer time without a pass is a gap."""
_TAKE_S = 1.0
"""How long a pass waits for changes at most: leases end without one."""
_STUCK_S = 120.0


class RetainedStore(Protocol):
    """A store that drops what is old, step by step."""

    def write(self, batch: HistoryBatch) -> None: ...

    def open_records(self) -> HistoryBatch: ...

    def retain(self, now_ms: int) -> bool: ...


class Seeing:
    """What objects show between two passes."""

    def __init__(self) -> None:
        self._facts: dict[str, PodFact] = {}
        self._gpus: dict[str, tuple[ListedGpu, ...]] = {}

    def see(self, resource: Resource, changes: list[Change[Any]]) -> None:
        """The changes of a resource, as objects."""
        if resource == kinds.PODS:
            self._facts |= {change.object.metadata.uid: fact_of(change) for change in changes}
        elif resource == kinds.GPU_NODES:
            for change in changes:
                name = change.object.metadata.name
                self._gpus[name] = () if change.kind == "deleted" else gpus_of(change.object)

    def take(self, events: list[Event]) -> Seen:
        """All that was seen since the last time, with these events."""
        touched = [event.pod.uid for event in events if isinstance(event, ev.PodChanged)]
        touched += [event.uid for event in events if isinstance(event, ev.PodRemoved)]
        seen = Seen(tuple(dict.fromkeys(touched)), self._gpus, self._facts)
        self._gpus, self._facts = {}, {}
        return seen


class Collector:
    """`run` goes on until it is cancelled."""

    def __init__(
        self,
        informers: Informers,
        seeing: Seeing,
        store: RetainedStore,
        write_s: float,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self.reported = Reported()
        self._informers = informers
        self._seeing = seeing
        self._store = store
        self._write_s = write_s
        self._clock_s = clock_s
        self._last_ms = 0
        self._collected = Collected()
        self._state = State(Policy())
        self.last_pass_s = 0.0
        """On the monotonic clock."""
        self.failure = ""
        """Why the last batch could not be written; "" if it was."""

    def now_ms(self) -> int:
        """The clock, which goes back only by more than the jitter of clocks."""
        now_ms = int(self._clock_s() * 1000)
        self._last_ms = max(self._last_ms, now_ms) if self._last_ms - now_ms < _JITTER_MS else now_ms
        return self._last_ms

    async def run(self) -> None:
        """Raises StoreError."""
        begun = await run_to_end(self._store.open_records)
        timeline = Timeline(begun, gap_ms=_GAP_MS)
        self.reported.add(begun)
        written_s = 0.0
        while True:
            events = await self._informers.events(min(_TAKE_S, self._write_s))
            now_ms = self.now_ms()
            enter(self._state, events, now_ms)
            batch = timeline.advance(self._state, now_ms, self._seeing.take(events))
            metrics.GAPS.inc(len(batch.gaps))
            self._collected.add(batch)
            self.reported.add(batch)
            self.last_pass_s = time.monotonic()
            if self.last_pass_s - written_s >= self._write_s:
                await self._write(now_ms)
                written_s = time.monotonic()

    async def take_use(self, hours: list[UseHour]) -> None:
        """Write these with the next batch."""
        self._collected.add(HistoryBatch(0, use=hours))

    async def _write(self, now_ms: int) -> None:
        """Raises StoreError where too much could not be written."""
        try:
            written = await self._write_collected()
            for kind in ("spans", "holds", "pods", "use", "gaps"):
                metrics.WRITTEN.labels(kind.removesuffix("s")).inc(len(getattr(written, kind)))
            metrics.WRITES.labels("written").inc()
            metrics.UNTIL.set(written.until_ms / 1000)
            self.failure = ""
            await run_to_end(partial(self._store.retain, now_ms))
        except StoreError as error:
            metrics.WRITES.labels("failed").inc()
            if not self.failure:
                metrics.log.error("nothing can be written, what is new is kept meanwhile: %s", error)
            self.failure = str(error)
            if self._collected.size > _MOST:
                raise
        metrics.UNWRITTEN.set(self._collected.size)

    async def _write_collected(self) -> HistoryBatch:
        """What was written. Raises StoreError. What was not written is still collected."""
        unwritten = [batch := self._collected.take()]

        def write() -> None:
            self._store.write(batch)
            unwritten.clear()

        try:
            await run_to_end(write)
        finally:
            for one in unwritten:
                self._collected.put_back(one)
        return batch

    async def finish(self) -> None:
        """Write what is left. Raises StoreError."""
        if self._collected.until_ms:
            await self._write_collected()

    @property
    def stuck_s(self) -> float:
        """For how long it has made no pass, if that is too long; else 0."""
        idle_s = time.monotonic() - self.last_pass_s if self.last_pass_s else 0.0
        return idle_s if idle_s > _STUCK_S else 0.0
