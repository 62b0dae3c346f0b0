# SPDX-License-Identifier: Apache-2.0
"""Sums of days in a file: when they are made, and when they are dropped.

Rules
- A day is added up once it has been over for `_LATE_MS`, the newest first, in steps of a bounded size. A day that is
  not complete is in memory only: it is written at once, with its last step.
- The times of which a batch changes what there was are `Touched`. The sums of their days are dropped in the transaction
  of the batch, and so is a day that is in the making.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from sys import intern
from typing import Any

from dovetail.history import day_sums, pod_days
from dovetail.history.day_sums import DaySummer, DaySums
from dovetail.history.gpu_use import NEVER_MS, UseOfPods
from dovetail.history.ledger import GpuTime, Unknown, divide
from dovetail.history.pod_days import PodDay, PodDaySummer
from dovetail.history.records import DAY_MS, HOUR_MS, Period, PodRecord
from dovetail.history.sqlite.reader import SqliteReader

_LATE_MS = HOUR_MS
"""For how long after a day the use of its last hours may come without that its sums are made twice."""
_GPUS_AT_ONCE = 256


class Touched:
    """Times of which something changes."""

    def __init__(self) -> None:
        self._times: list[tuple[int, int]] = []

    def add(self, start_ms: int, end_ms: int) -> None:
        """All from the start on and before the end, which is never if it is 0."""
        self._times.append((start_ms, end_ms or NEVER_MS))

    def replace(self, start_ms: int, before: Sequence[Any] | None, after: Sequence[Any]) -> None:
        """A record that begins at the time is written over the one before, if there is one. The first value of both is
        the end, 0 where there is none yet."""
        ends = sorted(one[0] or NEVER_MS for one in (before or after, after))
        if before is None or before[1:] != after[1:]:
            self.add(start_ms, ends[1])
        elif ends[0] < ends[1]:
            self.add(*ends)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The times in their order, those that meet as one."""
        found: list[tuple[int, int]] = []
        for start_ms, end_ms in sorted(self._times):
            if found and start_ms <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], end_ms)
            else:
                found.append((start_ms, end_ms))
        return iter(found)


class DaySumMaker:
    """Makes and drops the sums of a file. Runs inside of transactions of others."""

    def __init__(self, reader: SqliteReader, run: Callable[..., sqlite3.Cursor]) -> None:
        self._reader, self._run = reader, run
        self._day_ms = 0
        self._steps: Iterator[tuple[DaySums, PodDay] | None] | None = None
        """What is left to do for the day in the making."""

    def step(self, since_ms: int) -> bool:
        """One step; no day that begins before the time is made. Whether there is more to do. Raises StoreError."""
        if self._steps is None or self._day_ms < since_ms:
            missing = self._missing(since_ms)
            if missing is None:
                return False
            self._day_ms, self._steps = missing, self._made(missing)
        steps, self._steps = self._steps, None
        made = next(steps)
        if made is None:
            self._steps = steps
        else:
            values = made[0].start_ms, day_sums.encoded(made[0]), pod_days.encoded(made[1])
            self._run("INSERT OR REPLACE INTO day_sums VALUES (?, ?, ?)", values)
        return True

    def drop(self, touched: Touched) -> None:
        """Drop the sums of the days with these times."""
        for start_ms, end_ms in touched:
            self._run("DELETE FROM day_sums WHERE start_ms > ? AND start_ms < ?", (start_ms - DAY_MS, end_ms))
            if start_ms - DAY_MS < self._day_ms < end_ms:
                self._steps = None

    def _missing(self, since_ms: int) -> int | None:
        """The newest day that is over and has no sums."""
        known = self._reader.known()
        first_ms = -(-max(since_ms, known.start_ms) // DAY_MS) * DAY_MS
        last_ms = (known.end_ms - _LATE_MS) // DAY_MS * DAY_MS - DAY_MS
        there = {start_ms for (start_ms,) in self._run("SELECT start_ms FROM day_sums").fetchall()}
        return next((day_ms for day_ms in range(last_ms, first_ms - 1, -DAY_MS) if day_ms not in there), None)

    def _made(self, day_ms: int) -> Iterator[tuple[DaySums, PodDay] | None]:
        """The sums, after some None: each is a step. Between two of them nothing changes that is of the day."""
        reader, day = self._reader, Period(day_ms, day_ms + DAY_MS)
        pods: dict[str, PodRecord] = {}
        use = UseOfPods({("", one.pod_uid): (one.measured_ms, one.use) for one in reader.use_by_pod(day)}, pods)
        summer, of_pods = DaySummer(day_ms, pods), PodDaySummer(day_ms)
        gpus = reader.gpus()
        portions = [gpus[first : first + _GPUS_AT_ONCE] for first in range(0, len(gpus), _GPUS_AT_ONCE)]
        yield None
        # All times of a day are too much to keep: they are read again when it is known for how long each pod held GPUs.
        for asked in portions:
            holds = list(reader.holds_on(asked, day))
            pods |= {pod.uid: _summed(pod) for pod in reader.pods_of({hold.pod_uid for hold in holds} - pods.keys())}
            for one in divide(reader.spans_on(asked, day), holds, day):
                use.hold((one,))
                if isinstance(one, Unknown):
                    summer.unknown_ms += one.end_ms - one.start_ms
            yield None
        for asked in portions:
            found = divide(reader.spans_on(asked, day), reader.holds_on(asked, day), day)
            times = [one for one in found if isinstance(one, GpuTime)]
            summer.add(times, use)
            of_pods.add(times, use)
            yield None
        made = summer.made()
        yield made, of_pods.made(made.unknown_ms, made.assumed_time)


def _summed(pod: PodRecord) -> PodRecord:
    """What counts of a pod. Of a day there are many, of the same few owners."""
    namespace, user, queue = map(intern, (pod.namespace, pod.user, pod.queue))
    return PodRecord(
        pod.uid, namespace, pod.name, pod.job, "", user, queue, submitted_ms=pod.submitted_ms, bound_ms=pod.bound_ms,
        started_ms=pod.started_ms, ended_ms=pod.ended_ms,
    )  # fmt: skip
