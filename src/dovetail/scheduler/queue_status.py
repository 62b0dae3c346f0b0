# SPDX-License-Identifier: Apache-2.0
"""Writes the status of every Queue and of every AgentControlPlane (`plane_status`): what it holds, its fair share, and
its usage history, which survives a restart.

Rules
- Only the leader writes.
- A change of the queue or its jobs, or of the plane or its leases, is written at most once a second. A change of only
  the fair share or of an expected start, which other queues also cause, is written after ten seconds. A queue that is
  being charged is written every minute. If many are due, the one written longest ago comes first, and few are written
  at a time: hundreds of planes can be due in the same second, and offers and grants must not wait behind them.
- A status is written as a whole, and only into the object with the uid that was read: a queue recreated under the same
  name starts from zero. A queue without an object (`default`, unless it was created) has no status.
- At shutdown all statuses are written once more, within a few seconds. Otherwise jobs that began or ended since the
  last write would be charged from that write on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from msgspec import Struct

from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.reasons import Expected
from dovetail.core.state import State
from dovetail.kube.api.client import JSON_PATCH, Attempts, Client
from dovetail.kube.api.errors import Invalid, KubeError, NotFound
from dovetail.kube.api.resources import QUEUES
from dovetail.kube.informers import Informers
from dovetail.kube.objects.queues import MoneySpent
from dovetail.kube.translate.queue_documents import queue_status
from dovetail.scheduler import metrics
from dovetail.scheduler.clock import Clock

_LOOK_EVERY_S = 1.0
_AT_LEAST_EVERY_MS = 60_000
_DRIFT_MS = 10_000
_REFUSED_RETRY_MS = 10_000
_EACH_LOOK = 100
_TOGETHER = 8
Key = tuple[str, str]
_PART = 20
"""The search for due statuses takes at most one twentieth of the time."""
_LAST_S = 3.0


class _Written(Struct, frozen=True):
    """The last write into the object `uid`. `own` is the part that only the object and its jobs change (None: the write
    was refused), `drift` the part that others also change."""

    uid: str
    at_ms: int
    own: object
    drift: object = ()


class StatusDue(Struct, frozen=True):
    """A status of the object of this path and uid, as of `at_ms`. `key` is the namespace and name of a control plane; a
    queue has no namespace. `charged`: its usage grows with time. `awaited`: something waits until it is written."""

    key: Key
    path: str
    uid: str
    at_ms: int
    status: dict[str, Any]
    own: object
    drift: object
    charged: bool
    awaited: bool = False


class QueueStatusWriter:
    """`run` keeps the objects up to date. `state` is called each time, as the state may be replaced; `planes` are the
    statuses of control planes, `written` is called with the id of each that is written, and its time. `spent` is what
    was spent of money, by name and uid of the queue."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        mirror: Informers,
        *,
        state: Callable[[], State],
        may_write: Callable[[], bool],
        planes: Callable[[dict[str, QueueSnapshot], int], Iterable[StatusDue]] = lambda snapshots, now_ms: (),
        written: Callable[[str, int], None] = lambda plane, at_ms: None,
        spent: Callable[[str, str], MoneySpent | None] = lambda name, uid: None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._mirror = mirror
        self._state = state
        self._may_write = may_write
        self._planes = planes
        self._note = written
        self._spent = spent
        self._written: dict[Key, _Written] = {}

    async def run(self) -> None:
        """Write until cancelled, then once more."""
        try:
            took_s = 0.0
            while True:
                await asyncio.sleep(max(_LOOK_EVERY_S, _PART * took_s))
                began_s = time.monotonic()
                due = self._due(_AT_LEAST_EVERY_MS) if self._may_write() else []
                took_s = time.monotonic() - began_s
                await self._write_all(due[:_EACH_LOOK], _TOGETHER)
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await self._write_all(self._due(0) if self._may_write() else [], _EACH_LOOK)

    def _due(self, at_least_every_ms: int) -> list[StatusDue]:
        """The statuses to write now; the one written longest ago first."""
        now_ms, state = self._clock.now_ms(), self._state()
        snapshots = {snapshot.name: snapshot for snapshot in state.queue_snapshots(now_ms)}
        all_ = [*self._queues(state, snapshots, now_ms), *self._planes(snapshots, now_ms)]
        self._written = {key: one for key, one in self._written.items() if self._uid(key) == one.uid}
        due = [one for one in all_ if self._is_due(one, at_least_every_ms if one.charged else None)]
        return sorted(due, key=lambda one: (self._last_ms(one), one.key))

    def _uid(self, key: Key) -> str:
        """The uid of the object as it is known now, "" if it is gone."""
        obj = (self._mirror.control_planes if key[0] else self._mirror.queues).known.get(key)
        return obj.metadata.uid if obj is not None else ""

    def _queues(self, state: State, snapshots: dict[str, QueueSnapshot], now_ms: int) -> Iterator[StatusDue]:
        for name, snapshot in snapshots.items():
            obj = self._mirror.queues.known.get(("", name))
            if obj is not None:
                spent = self._spent(name, obj.metadata.uid)
                status = queue_status(snapshot, now_ms, head_of(state, snapshot), obj, spent)
                path = QUEUES.path(name=name, subresource="status")
                yield StatusDue(
                    ("", name), path, obj.metadata.uid, now_ms, status, _own(status), _drift(status),
                    bool(snapshot.rate_milli),
                )  # fmt: skip

    def _is_due(self, one: StatusDue, at_least_every_ms: int | None) -> bool:
        written = self._written.get(one.key)
        if written is None:
            return True
        since_ms = one.at_ms - written.at_ms
        if written.own is None:
            return since_ms >= _REFUSED_RETRY_MS
        if one.awaited or written.own != one.own or (at_least_every_ms is not None and since_ms >= at_least_every_ms):
            return True
        return since_ms >= _DRIFT_MS and written.drift != one.drift

    def _last_ms(self, due: StatusDue) -> int:
        written = self._written.get(due.key)
        return written.at_ms if written is not None else 0

    async def _write_all(self, due: list[StatusDue], together: int) -> None:
        """In this order, so many at a time."""
        left = iter(due)

        async def work() -> None:
            for one in left:
                await self._write(one)

        await asyncio.gather(*(work() for _ in range(together)))

    async def _write(self, due: StatusDue) -> None:
        if not self._may_write():
            return
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": due.uid},
            {"op": "add", "path": "/status", "value": due.status},
        ]
        try:
            await self._client.request(
                "PATCH", due.path, patch, content_type=JSON_PATCH, attempts=Attempts(idempotent=True)
            )
        except NotFound:
            metrics.count(metrics.QUEUE_STATUSES, "gone")
        except KubeError as error:
            if isinstance(error, Invalid) and self._uid(due.key) != due.uid:
                metrics.count(metrics.QUEUE_STATUSES, "gone")
                return
            metrics.log.warning("the status of %s cannot be written: %s", due.path, error)
            metrics.count(metrics.QUEUE_STATUSES, "refused")
            self._written[due.key] = _Written(due.uid, due.at_ms, None)
        else:
            self._written[due.key] = _Written(due.uid, due.at_ms, due.own, due.drift)
            metrics.count(metrics.QUEUE_STATUSES, "written")
            if due.key[0]:
                self._note("/".join(due.key), due.at_ms)


def _own(status: dict[str, Any]) -> dict[str, Any]:
    """The status without the parts that change with time or with other queues. The days of a queue that is not charged
    change where something was charged at once."""
    conditions = [{k: v for k, v in one.items() if k != "lastTransitionTime"} for one in status["conditions"]]
    head = {k: v for k, v in status.get("head", {}).items() if k != "expectedStart"}
    usage = status["usage"]
    charged = usage["rate"] if usage["rate"] != "0" else usage["days"]
    return status | {"usage": charged, "conditions": conditions, "head": head, "due": None}


def _drift(status: dict[str, Any]) -> tuple[Any, ...]:
    return status["due"], status.get("head", {}).get("expectedStart")


def head_of(state: State, snapshot: QueueSnapshot) -> tuple[str, str, Expected | None] | None:
    """The first waiting job of a queue: its name, the code of its refusal, and its expected start."""
    members = state.workloads.members(snapshot.head) if snapshot.head else []
    if not members:
        return None
    gang, refusal = state.workloads.gangs.get(snapshot.head), state.queue.refusal(snapshot.head)
    name = f"{gang.namespace}/{gang.name}" if gang is not None else min(pod.key for pod in members)
    return name, refusal.reason.code if refusal is not None else "", refusal.expected if refusal is not None else None
