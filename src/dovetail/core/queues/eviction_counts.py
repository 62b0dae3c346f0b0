# SPDX-License-Identifier: Apache-2.0
"""The number of times that each job was evicted for others, so that no job is evicted again and again.

Rules: a job is a gang, else all pods of one controller, else a pod. After an eviction the job is protected for some
time after each start. Jobs within their guarantee or of a higher priority must wait 1 minute, then 2, 4, 8 and at most
10; all others must wait for the least run time of the job's queue, doubled with each eviction, and at most a day. The
count is reset a day after the last eviction.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.queues.types import DAY_MS, Evictions

_FIRST_MS = 60_000
_MOST_MS = 600_000
_DOUBLED = 12
"""Doubled more often than this, every run time is more than a day."""


class EvictionCounts:
    def __init__(self, known: Iterable[Evictions] = ()) -> None:
        self._jobs = {one.job: one for one in known}

    def note(self, jobs: Iterable[str], now_ms: int) -> None:
        """Count an eviction of each of these jobs."""
        self._jobs = {one.job: one for one in self._jobs.values() if now_ms - one.last_ms < DAY_MS}
        for job in dict.fromkeys(jobs):
            # The newest entry is the last.
            times = self.times(job, now_ms)
            self._jobs.pop(job, None)
            self._jobs[job] = Evictions(job, times + 1, now_ms)

    def times(self, job: str, now_ms: int) -> int:
        known = self._jobs.get(job)
        return known.times if known is not None and now_ms - known.last_ms < DAY_MS else 0

    def spared_ms(self, job: str, now_ms: int) -> int:
        """How long after its start the job is protected from every other job."""
        times = self.times(job, now_ms)
        return min(_MOST_MS, _FIRST_MS << min(times - 1, _DOUBLED)) if times else 0

    def settled_ms(self, job: str, least_ms: int, now_ms: int) -> int:
        """The same from jobs that are not within their guarantee; `least_ms` is the least run time of the queue."""
        times = min(self.times(job, now_ms), _DOUBLED)
        return max(least_ms, min(DAY_MS, least_ms << times), self.spared_ms(job, now_ms))

    def records(self) -> tuple[Evictions, ...]:
        return tuple(self._jobs.values())
