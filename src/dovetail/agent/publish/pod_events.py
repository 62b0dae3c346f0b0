# SPDX-License-Identifier: Apache-2.0
"""Events on the pods of this node: an error of a GPU that a pod holds, processes on GPUs that their pod does not hold,
and what a container got for its network.

Rules
- An event is written as soon as the pods that hold the device are known, normally within a second.
- One Event object per pod, reason and code in `WINDOW_S`. Repetitions raise the count of its series, at most every
  `COUNT_AGAIN_S`.
- At most `MOST_WRITES` writes in `WINDOW_S`, `MOST_WAITING` errors that wait, and `MOST_SERIES` series. What is beyond
  that is dropped, and counted in `dropped`. A write that fails is not repeated: the GPUNode has the fault.
- What containers got is written only up to half of the writes: a tenant whose pods come and go cannot hide the errors.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from dovetail.agent.exporter.processes import Foreign
from dovetail.agent.exporter.reading import Owner, Owners
from dovetail.agent.health.gpu_events import DOUBLE_BIT, XID, GpuEvent
from dovetail.agent.health.watched import BY_DRIVER
from dovetail.agent.health.xids import Action, XidTable
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.resources import EVENTS, PODS
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate.event_documents import (
    EventNote,
    EventObject,
    EventReporter,
    event_document,
    series_document,
)

REPORTER = "dovetail.dev/agent"
GPU_ERROR, UNREQUESTED = "GPUError", "GPUUsedWithoutRequest"
WINDOW_S = 600.0
COUNT_AGAIN_S = 30.0
MOST_WRITES, MOST_WAITING, MOST_SERIES = 300, 256, 1024
_MIB = 1 << 20
log = logging.getLogger(__name__)


class PodEvent(Struct, frozen=True):
    """What happened to a pod. `code` distinguishes events of one reason; `note` is for people. `warns`: something is
    wrong."""

    namespace: str
    pod: str
    pod_uid: str
    reason: str
    code: str
    note: str
    warns: bool = True
    action: str = "Checking"


class _Error(Struct, frozen=True):
    """An error of a GPU. `uuids` are the affected devices."""

    code: str
    note: str
    uuids: tuple[str, ...]


class _Series(Struct):
    """An Event that was written: `count` occurrences, `shown` of them in the object."""

    namespace: str
    name: str
    since_s: float
    count: int = 1
    shown: int = 1
    shown_s: float = 0.0


def foreign_event(foreign: Foreign) -> PodEvent | None:
    """The event of a process on a device that its pod does not hold; None if the process has no pod."""
    if not foreign.pod:
        return None
    used = f" ({foreign.memory_bytes // _MIB} MiB)" if foreign.memory_bytes else ""
    note = f"Process {foreign.pid} of this pod uses {foreign.uuid}{used}, which the pod has not requested."
    return PodEvent(foreign.namespace, foreign.pod, foreign.pod_uid, UNREQUESTED, foreign.uuid, note)


class PodEvents:
    """`owners` returns the pods that hold the devices, None if they are not known; `foreign` the processes on devices
    that their pods do not hold. `clock_s` is a monotonic clock, `now` the time of day."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        table: XidTable,
        owners: Callable[[], Awaitable[Owners | None]],
        foreign: Callable[[], Iterable[Foreign]] = tuple,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._reporter = EventReporter(REPORTER, node_name)
        self._table = table
        self._owners = owners
        self._foreign = foreign
        self._clock_s = clock_s
        self._now = now
        self._waiting: deque[_Error] = deque()
        self._notices: deque[PodEvent] = deque()
        self._due = asyncio.Event()
        self._series: dict[tuple[str, str, str], _Series] = {}
        self._written_s: deque[float] = deque()
        self.dropped = 0
        """How many events were not written, beyond the bounds."""

    def occurred(self, event: GpuEvent) -> None:
        """An event of a GPU, also one that does not make it unhealthy."""
        error = self._error(event)
        if error is None:
            return
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append(error)
        self._due.set()

    def report(self, event: PodEvent) -> None:
        """Write this event soon."""
        if len(self._notices) >= MOST_WAITING:
            self.dropped += 1
            return
        self._notices.append(event)
        self._due.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            try:
                async with asyncio.timeout(COUNT_AGAIN_S):
                    await self._due.wait()
            except TimeoutError:
                for one in map(foreign_event, self._foreign()):
                    if one is not None:
                        await self._put(one)
            self._due.clear()
            await self._write_errors()
            while self._notices:
                await self._put(self._notices.popleft(), MOST_WRITES // 2)
            await self._write_counts()

    async def _write_errors(self) -> None:
        errors = [*self._waiting]
        self._waiting.clear()
        if not errors:
            return
        owners = await self._owners()
        if owners is None:
            log.warning("%d errors of GPUs are no events on pods: the kubelet does not list its pods", len(errors))
            return
        for error in errors:
            for owner in _holders(owners, error.uuids):
                await self._put(PodEvent(owner.namespace, owner.pod, owner.pod_uid, GPU_ERROR, error.code, error.note))

    def _error(self, event: GpuEvent) -> _Error | None:
        if event.kind == XID and event.number != BY_DRIVER:
            meaning = self._table.meaning(event.number)
            code, what, action = f"xid-{event.number}", f"XID {event.number}, {meaning.name}", meaning.action
        elif event.kind == DOUBLE_BIT:
            code, what, action = "ecc-double-bit", "double-bit ECC error", Action.QUARANTINE_GPU
        else:
            return None
        uuids = event.hit if event.hit is not None else (event.gpu, *event.instances)
        device = ", ".join(event.hit or (event.gpu,))
        return _Error(f"{code}/{event.gpu}", f"{what}, on {device}. Action: {action.word} ({action.advice}).", uuids)

    async def _put(self, event: PodEvent, most: int | None = None) -> None:
        """Write the event, or count it. `most`: only while there were fewer writes."""
        now_s = self._clock_s()
        key = (event.pod_uid or f"{event.namespace}/{event.pod}", event.reason, event.code)
        known = self._series.get(key)
        if known is not None and now_s - known.since_s < WINDOW_S:
            known.count += 1
            return
        self._forget(now_s)
        if len(self._series) >= MOST_SERIES or not self._may_write(now_s, most):
            self.dropped += 1
            return
        document = event_document(
            EventObject(PODS, event.namespace, event.pod, event.pod_uid),
            EventNote(event.reason, event.action, "Warning" if event.warns else "Normal", event.note),
            self._reporter,
            epoch_ms(self._now()),
            f"{time.time_ns():x}",
        )
        self._series[key] = _Series(event.namespace, document["metadata"]["name"], now_s, shown_s=now_s)
        await self._request("POST", EVENTS.path(event.namespace), document)

    async def _write_counts(self) -> None:
        """Update the series that have grown."""
        now_s = self._clock_s()
        for one in [*self._series.values()]:
            if one.count > one.shown and now_s - one.shown_s >= COUNT_AGAIN_S and self._may_write(now_s):
                one.shown, one.shown_s = one.count, now_s
                series = series_document(one.count, epoch_ms(self._now()))
                await self._request("PATCH", EVENTS.path(one.namespace, one.name), series, content_type=MERGE_PATCH)

    def _forget(self, now_s: float) -> None:
        for key, one in [*self._series.items()]:
            if now_s - one.since_s >= WINDOW_S:
                del self._series[key]

    def _may_write(self, now_s: float, most: int | None = None) -> bool:
        while self._written_s and now_s - self._written_s[0] >= WINDOW_S:
            self._written_s.popleft()
        if len(self._written_s) >= (MOST_WRITES if most is None else most):
            return False
        self._written_s.append(now_s)
        return True

    async def _request(self, method: str, path: str, body: dict[str, Any], **options: Any) -> None:
        try:
            await self._client.request(method, path, body, **options)
        except KubeError as error:
            log.warning("an event on a pod cannot be written: %s", error)


def _holders(owners: Owners, uuids: Iterable[str]) -> Iterator[Owner]:
    """The containers that hold one of the devices, each pod once."""
    seen = set()
    for uuid in uuids:
        for owner in owners.by_device.get(uuid, ()):
            if (owner.namespace, owner.pod) not in seen:
                seen.add((owner.namespace, owner.pod))
                yield owner
