# SPDX-License-Identifier: Apache-2.0
"""Writes that belong together, one after the other, each until the server has taken it.

Rules
- Writes under one id are carried out in order, those of different ids at the same time.
- A write that replaces others takes the place of the last one that waits, if that is of its kind.
- A write is repeated, after waits that double, until it is answered; it is dropped where its object is gone. One that
  replaces others is dropped when the server has refused it several times, for what is in it or in its object (an
  agent can fill its request until no status fits into it): what waits behind it is not the agent's to stop.
- While `_MOST_AT_A_TIME` ids of a namespace have writes, a patient one begins when another id is done. So an agent that
  makes very many objects waits for the status of these itself, and nobody else does.
- Nothing is written unless this process is the leader at that moment.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine

from msgspec import Struct

from dovetail.kube.api.errors import ApiError, Invalid, KubeError, NotFound
from dovetail.scheduler import metrics

_AGAIN_S, _AGAIN_MAX_S = 0.5, 30.0
_MOST_AT_A_TIME = 16
_MOST_REFUSALS = 6
"""So it is dropped after a quarter of a minute."""
CarryOut = Callable[[], Coroutine[None, None, object]]


class WriteRefused(Exception):
    """The write is refused for good, and what was to follow it makes no sense any more."""


class _Write(Struct, frozen=True):
    """One write, decided at `decided_s` (time.monotonic). `replaces`: of several of its kind only the last counts."""

    kind: str
    carry_out: CarryOut
    decided_s: float
    replaces: bool


class OrderedWrites:
    """Ids are "namespace/name". `spawn` runs work in the background; `refused` is called with an id and why after a
    WriteRefused."""

    def __init__(
        self,
        *,
        may_write: Callable[[], bool],
        spawn: Callable[[Coroutine[None, None, None]], object],
        refused: Callable[[str, WriteRefused], None],
    ) -> None:
        self._may_write = may_write
        self._spawn = spawn
        self._refused = refused
        self._waiting: dict[str, deque[_Write]] = {}
        """By id what is to be written, in order; the first is under way."""
        self._open: Counter[str] = Counter()
        """By namespace how many of these there are."""
        self._behind: dict[str, dict[str, _Write]] = {}
        """By namespace, and by id, what begins when another id of the namespace is done."""

    def pending(self, namespace: str) -> bool:
        """Whether something under an id of the namespace is not written yet."""
        return self._open[namespace] > 0 or namespace in self._behind

    def add(self, id_: str, kind: str, carry_out: CarryOut, *, replaces: bool = False, patient: bool = False) -> None:
        """`kind` is the label of the metrics. The function may raise WriteRefused. A patient write replaces others."""
        waiting, namespace = self._waiting.get(id_), _namespace(id_)
        write = _Write(kind, carry_out, time.monotonic(), replaces)
        if waiting is None and patient and self._open[namespace] >= _MOST_AT_A_TIME:
            self._behind.setdefault(namespace, {})[id_] = write
            return
        if waiting is None:
            before = self._no_longer_behind(namespace, id_)
            replaced = before is None or (replaces and before.kind == kind)
            self._begin(id_, [write] if replaced or before is None else [before, write])
            return
        # The first one may be under way.
        if replaces and len(waiting) > 1 and waiting[-1].kind == kind:
            waiting.pop()
        waiting.append(write)

    def _begin(self, id_: str, writes: list[_Write]) -> None:
        waiting = self._waiting[id_] = deque(writes)
        self._open[_namespace(id_)] += 1
        self._spawn(self._work(id_, waiting))

    def _no_longer_behind(self, namespace: str, id_: str) -> _Write | None:
        behind = self._behind.get(namespace, {})
        write = behind.pop(id_, None)
        if write is not None and not behind:
            del self._behind[namespace]
        return write

    async def _work(self, id_: str, waiting: deque[_Write]) -> None:
        wait_s, refusals = _AGAIN_S, 0
        while waiting:
            write = waiting[0]
            result = await self._try(id_, write)
            if result == "denied":
                refusals += 1
                result = "dropped" if write.replaces and refusals == _MOST_REFUSALS else "again"
            metrics.count(metrics.LEASE_WRITES, write.kind, result)
            if result == "again":
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _AGAIN_MAX_S)
                if len(waiting) == 1 or not write.replaces or waiting[1].kind != write.kind:
                    continue
            wait_s, refusals = _AGAIN_S, 0
            if result == "refused":
                break
            waiting.popleft()
            metrics.LEASE_WRITE_SECONDS.labels(write.kind).observe(time.monotonic() - write.decided_s)
        del self._waiting[id_]
        namespace = _namespace(id_)
        self._open[namespace] -= 1
        if not self._open[namespace]:
            del self._open[namespace]
        if namespace in self._behind and self._open[namespace] < _MOST_AT_A_TIME:
            next_id = next(iter(self._behind[namespace]))
            if (next_write := self._no_longer_behind(namespace, next_id)) is not None:
                self._begin(next_id, [next_write])

    async def _try(self, id_: str, write: _Write) -> str:
        """Carry out once. Returns the result as the metric labels it, or that it was denied for what it is."""
        if not self._may_write():
            # A process that does not lead any more ends.
            return "not leader"
        try:
            await write.carry_out()
        except NotFound:
            return "gone"
        except Invalid as error:
            metrics.log.warning("%s of %s is not written: %s", write.kind, id_, error)
            return "gone"
        except WriteRefused as error:
            metrics.log.warning("%s of %s is refused: %s", write.kind, id_, error)
            self._refused(id_, error)
            return "refused"
        except KubeError as error:
            metrics.log.warning("%s of %s is not written yet: %s", write.kind, id_, error)
            return "denied" if isinstance(error, ApiError) and not error.passes else "again"
        return "written"


def _namespace(id_: str) -> str:
    return id_.partition("/")[0]
