# SPDX-License-Identifier: Apache-2.0
"""A history in memory, for tests of what reads one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from dovetail.history.records import Gap, GpuHold, GpuSpan, Period, PodRecord, UseHour
from dovetail.history.sqlite.reader import UseSum


class MemoryReader(Struct):
    """The records, in any order. `until` is the time of which all is known."""

    until: Period
    all_spans: Sequence[GpuSpan] = ()
    all_holds: Sequence[GpuHold] = ()
    all_pods: Sequence[PodRecord] = ()
    all_use: Sequence[UseHour] = ()
    all_gaps: Sequence[Gap] = ()

    def known(self) -> Period:
        return self.until

    def spans(self, period: Period) -> Iterator[GpuSpan]:
        found = (one for one in self.all_spans if period.clipped(one.start_ms, one.end_ms).ms)
        return iter(sorted(found, key=lambda one: (one.gpu, one.start_ms)))

    def holds(self, period: Period) -> Iterator[GpuHold]:
        found = (one for one in self.all_holds if period.clipped(one.start_ms, one.end_ms).ms)
        return iter(sorted(found, key=lambda one: (one.gpu, one.start_ms, one.pod_uid, one.device)))

    def pods(self, period: Period) -> Iterator[PodRecord]:
        return (one for one in self.all_pods if period.clipped(one.submitted_ms, one.ended_ms).ms)

    def pods_of(self, uids: Collection[str]) -> Iterator[PodRecord]:
        return (one for one in self.all_pods if one.uid in uids)

    def job(self, namespace: str, name: str) -> Iterator[PodRecord]:
        found = (one for one in self.all_pods if (one.namespace, one.job) == (namespace, name))
        return iter(sorted(found, key=lambda one: one.submitted_ms))

    def use(self, period: Period) -> Iterator[UseHour]:
        return (one for one in self.all_use if period.start_ms <= one.hour_ms < period.end_ms)

    def use_by_pod(self, period: Period) -> Iterator[UseSum]:
        sums: dict[str, list[int]] = {}
        for one in self.use(period):
            found = sums.setdefault(one.pod_uid, [0, 0, 0])
            for number, amount in enumerate((one.measured_ms, one.use, one.idle_ms)):
                found[number] += amount
        return (UseSum(uid, *amounts) for uid, amounts in sums.items())

    def gaps(self, period: Period) -> Iterator[Gap]:
        return (one for one in self.all_gaps if period.clipped(one.start_ms, one.end_ms).ms)
