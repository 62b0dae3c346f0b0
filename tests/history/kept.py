# SPDX-License-Identifier: Apache-2.0
"""A store in memory, which is obviously right, to compare others with; and records for tests."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import zip_longest

from msgspec.structs import replace

from dovetail.history.day_sums import DaySums
from dovetail.history.pod_days import PodDay
from dovetail.history.records import Gap, GpuHold, GpuSpan, HistoryBatch, Period, PodRecord, UseHour


def added(one: UseHour, other: UseHour) -> UseHour:
    histogram = tuple(map(sum, zip_longest(one.histogram, other.histogram, fillvalue=0)))
    names = {**one.activity, **other.activity}
    return replace(
        one,
        measured_ms=one.measured_ms + other.measured_ms,
        use=one.use + other.use,
        idle_ms=one.idle_ms + other.idle_ms,
        memory_peak_mib=max(one.memory_peak_mib, other.memory_peak_mib),
        histogram=histogram,
        activity={name: one.activity.get(name, 0) + other.activity.get(name, 0) for name in names},
        used_until_ms=max(one.used_until_ms, other.used_until_ms),
        source="",
    )


class Kept:
    """What was written, in dictionaries."""

    def __init__(self) -> None:
        self.until_ms = 0
        self.first_ms: int | None = None
        self._spans: dict[tuple[str, int], GpuSpan] = {}
        self._holds: dict[tuple[str, int, str, str], GpuHold] = {}
        self._pods: dict[str, PodRecord] = {}
        self._use: dict[tuple[int, str, str, str], UseHour] = {}
        self._gaps: dict[tuple[int, int], Gap] = {}

    def write(self, batch: HistoryBatch) -> None:
        starts = [one.start_ms for some in (batch.spans, batch.holds, batch.gaps) for one in some]
        first_ms = min([*starts, *(one.hour_ms for one in batch.use)], default=batch.until_ms)
        self.first_ms = first_ms if self.first_ms is None else min(first_ms, self.first_ms)
        self.until_ms = max(self.until_ms, batch.until_ms)
        self._spans |= {(one.gpu, one.start_ms): one for one in batch.spans}
        self._holds |= {(one.gpu, one.start_ms, one.pod_uid, one.device): one for one in batch.holds}
        self._pods |= {one.uid: one for one in batch.pods}
        self._gaps |= {(one.start_ms, one.end_ms): one for one in batch.gaps}
        self._use |= {(one.hour_ms, one.gpu, one.pod_uid, one.source): one for one in batch.use}

    def known(self) -> Period:
        return Period(0, 0) if self.first_ms is None else Period(self.first_ms, max(self.first_ms, self.until_ms))

    def spans(self, period: Period) -> Iterator[GpuSpan]:
        return (one for _, one in sorted(self._spans.items()) if _touches(one, period))

    def holds(self, period: Period) -> Iterator[GpuHold]:
        return (one for _, one in sorted(self._holds.items()) if _touches(one, period))

    def holds_of(self, uids: Collection[str]) -> Iterator[GpuHold]:
        return (one for _, one in sorted(self._holds.items()) if one.pod_uid in uids)

    def pods(self, period: Period) -> Iterator[PodRecord]:
        found = (
            one
            for one in self._pods.values()
            if one.submitted_ms < period.end_ms and (not one.ended_ms or one.ended_ms > period.start_ms)
        )
        return iter(sorted(found, key=lambda one: (one.submitted_ms, one.uid)))

    def pods_of(self, uids: Collection[str]) -> Iterator[PodRecord]:
        return (self._pods[uid] for uid in sorted(uids) if uid in self._pods)

    def job(self, name: str, namespace: str = "") -> Iterator[PodRecord]:
        found = (one for one in self._pods.values() if one.job == name and namespace in ("", one.namespace))
        return iter(sorted(found, key=lambda one: (one.submitted_ms, one.uid)))

    def use(self, period: Period) -> Iterator[UseHour]:
        return (one for key, one in sorted(self._use.items()) if period.start_ms <= key[0] < period.end_ms)

    def day_sums(self, period: Period) -> Iterator[DaySums]:
        """It adds up nothing: what is read of it comes from the records."""
        return iter(())

    def pod_names(self, period: Period) -> Iterator[PodRecord]:
        return self.pods(period)

    def pod_days(self, period: Period) -> Iterator[PodDay]:
        return iter(())

    def gaps(self, period: Period) -> Iterator[Gap]:
        return (one for _, one in sorted(self._gaps.items()) if _touches(one, period))

    def open_records(self) -> HistoryBatch:
        always = Period(0, 2**60)
        return HistoryBatch(
            self.until_ms,
            [one for one in self.spans(always) if not one.end_ms],
            [one for one in self.holds(always) if not one.end_ms],
            [one for one in self.pods(always) if not one.ended_ms],
        )


def _touches(one: GpuSpan | GpuHold | Gap, period: Period) -> bool:
    return one.start_ms < period.end_ms and (one.end_ms > period.start_ms or (not one.end_ms and type(one) is not Gap))
