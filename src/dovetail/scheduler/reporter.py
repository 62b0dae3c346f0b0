# SPDX-License-Identifier: Apache-2.0
"""Writes reports: pod conditions, PodGroup conditions, nominations and events, after the binds.

Rules
- While binds are in flight, reports wait, `BEHIND_S` at most. Then they are written one at a time, so that binds are
  not delayed, together with the reports that would be due shortly after. Without binds, many are written at a time.
- A waiting report is replaced by a later one with the same key. Reports of one key are written in sequence, so the
  newest is written last.
- A report that the server refuses is counted and dropped. One that does not reach the server, or meets an overloaded
  one, is retried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct

from dovetail.kube.api.client import JSON, STRATEGIC_PATCH, Attempts, Client
from dovetail.kube.api.errors import AlreadyExists, ApiError, Conflict, KubeError, NotFound
from dovetail.scheduler import metrics

WORKERS = 32
BEHIND_S = 5.0
"""The longest time that a report waits for binds."""
_TOGETHER_S = 1.0
"""An overdue report is written together with those queued up to this much later: to sleep between two costs as much as
to write one."""
_AGAIN = "again"
_AGAIN_S = 1.0
_PASSING = (0, 429, 502, 503, 504)
"""Statuses after which a report is retried, as the cause is not the report; 0 is no reply."""


class StepReport(Struct, frozen=True):
    """One write. `kind` is the label of the metric: "condition", "event", "group" or "nomination"."""

    kind: str
    method: str
    path: str
    body: bytes


class Reporter:
    """`put(key, report)` queues a report; it replaces one with the same key that is not written yet."""

    def __init__(self, client: Client, binds_idle: asyncio.Event, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._binds_idle = binds_idle
        self._may_write = may_write
        self._waiting: dict[str, tuple[StepReport, float]] = {}
        """The report to write for each key, and since when the key has one."""
        self._turns = asyncio.Semaphore(0)
        """One permit for each waiting report, so that a report wakes one worker and not all of them."""
        self._writing: set[str] = set()
        self._written = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    def put(self, key: str, report: StepReport) -> None:
        _, since_s = self._waiting.get(key, (None, time.monotonic()))
        self._waiting[key] = report, since_s
        self.idle.clear()
        self._turns.release()

    async def withdraw(self, key: str) -> None:
        """Drop the report of this key if it is not written yet; wait for a write in progress."""
        self._waiting.pop(key, None)
        while key in self._writing:
            await self._written.wait()
            self._waiting.pop(key, None)
        self._note_idle()

    def writes(self, key: str) -> bool:
        """Whether a report of this key waits or is being written."""
        return key in self._waiting or key in self._writing

    @property
    def queued(self) -> int:
        """The number of waiting reports."""
        return len(self._waiting)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(self._work(patient=number > 0))

    async def _work(self, *, patient: bool) -> None:
        due_since_s = 0.0
        while True:
            if patient:
                await self._binds_idle.wait()
            await self._turns.acquire()
            key = next((key for key in self._waiting if key not in self._writing), None)
            if key is None:
                # Withdrawn, replaced, or another worker writes an earlier report of the same key.
                continue
            report, since_s = self._waiting[key]
            if not self._binds_idle.is_set() and (patient or since_s > due_since_s):
                self._turns.release()
                if not patient:
                    try:
                        # Not wait_for: before Python 3.12 it may lose a cancellation.
                        async with asyncio.timeout(since_s + BEHIND_S - time.monotonic()):
                            await self._binds_idle.wait()
                    except TimeoutError:
                        due_since_s = since_s + _TOGETHER_S
                continue
            del self._waiting[key]
            self._writing.add(key)
            result = await self._write(report)
            self._writing.discard(key)
            if result == _AGAIN:
                self._waiting.setdefault(key, (report, since_s))
            self._written.set()
            self._written.clear()
            metrics.count(metrics.REPORTS, report.kind, result)
            if key in self._waiting:
                self._turns.release()
            self._note_idle()
            if result == _AGAIN:
                await asyncio.sleep(_AGAIN_S)

    def _note_idle(self) -> None:
        if not self._waiting and not self._writing:
            self.idle.set()

    async def _write(self, report: StepReport) -> str:
        """Write once. Returns the result as the metric labels it."""
        if not self._may_write():
            return "not leader"
        content_type = STRATEGIC_PATCH if report.method == "PATCH" else JSON
        try:
            # Safe to repeat: an event has a unique name, so a second write is refused as AlreadyExists.
            await self._client.request(
                report.method, report.path, report.body, content_type=content_type, attempts=Attempts(idempotent=True)
            )
        except AlreadyExists:
            return "written"
        except (NotFound, Conflict):
            # The conflict is about the uid: another object has the name by now.
            return "gone"
        except KubeError as error:
            if isinstance(error, ApiError) and error.status in _PASSING:
                return _AGAIN
            metrics.log.warning("a report is dropped: %s", error)
            return "refused"
        return "written"
