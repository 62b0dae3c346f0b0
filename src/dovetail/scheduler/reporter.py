# SPDX-License-Identifier: Apache-2.0
"""Telling users: pod conditions, PodGroup conditions and events, written behind the binds and all of them in the end.

Rules: while binds are under way only one report is written at a time, so that binds are not delayed; then many. Reports
of one key replace each other while they wait, and are written one after another, so the last word is the newest. A
report that the server refuses is counted and dropped; one that cannot reach it is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dovetail.kube.client import STRATEGIC_PATCH, Client
from dovetail.kube.errors import ApiError, KubeError, NotFound, OutcomeUnknown, Unreachable
from dovetail.scheduler import metrics

WORKERS = 32
_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """One write. `kind` is for the metric: "condition", "event" or "group"."""

    kind: str
    method: str
    path: str
    body: bytes


class Reporter:
    """`put(key, report)`: a later report with the same key takes the place of one that is not written yet."""

    def __init__(self, client: Client, binds_idle: asyncio.Event, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._binds_idle = binds_idle
        self._may_write = may_write
        self._waiting: dict[str, Report] = {}
        self._more = asyncio.Event()
        self._writing: set[str] = set()
        self._written = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    def put(self, key: str, report: Report) -> None:
        self._waiting.pop(key, None)
        self._waiting[key] = report
        self.idle.clear()
        self._more.set()

    async def withdraw(self, key: str) -> None:
        """Take back what is not written yet; what is being written is waited for."""
        self._waiting.pop(key, None)
        while key in self._writing:
            await self._written.wait()

    def writes(self, key: str) -> bool:
        """Whether a report of this key waits or is being written."""
        return key in self._waiting or key in self._writing

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(self._work(patient=number > 0))

    async def _work(self, *, patient: bool) -> None:
        while True:
            if patient:
                await self._binds_idle.wait()
            key = next((key for key in self._waiting if key not in self._writing), None)
            if key is None:
                self._more.clear()
                await self._more.wait()
                continue
            report = self._waiting.pop(key)
            metrics.REPORTS_QUEUED.set(len(self._waiting))
            self._writing.add(key)
            result = await self._write(report)
            self._writing.discard(key)
            self._written.set()
            self._written.clear()
            metrics.REPORTS.labels(report.kind, result).inc()
            if key in self._waiting:
                self._more.set()
            if not self._waiting and not self._writing:
                self.idle.set()

    async def _write(self, report: Report) -> str:
        content_type = STRATEGIC_PATCH if report.method == "PATCH" else "application/json"
        while self._may_write():
            try:
                # An event carries a name of its own: written twice it is refused the second time, which is as good.
                await self._client.request(
                    report.method, report.path, report.body, content_type=content_type, idempotent=True
                )
            except (OutcomeUnknown, Unreachable):
                await asyncio.sleep(_AGAIN_S)
            except NotFound:
                return "gone"
            except ApiError as error:
                if error.reason == "AlreadyExists":
                    return "written"
                metrics.log.warning("%s %s: %s", report.method, report.path, error)
                return "refused"
            except KubeError as error:
                metrics.log.warning("%s %s: %s", report.method, report.path, error)
                return "refused"
            else:
                return "written"
        return "not leader"
