# SPDX-License-Identifier: Apache-2.0
"""A history in memory, for tests of what reads one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail.history.records import Gap, GpuHold, GpuSpan, HistoryBatch, Period, PodRecord, UseHour, UseSum
from tests.history.kept import Kept


class MemoryReader(Kept):
    """These records, and what they are of."""

    def __init__(
        self,
        until: Period,
        spans: Sequence[GpuSpan] = (),
        holds: Sequence[GpuHold] = (),
        pods: Sequence[PodRecord] = (),
        use: Sequence[UseHour] = (),
        gaps: Sequence[Gap] = (),
    ) -> None:
        super().__init__()
        self.until, self.all_spans, self.all_holds = until, spans, holds
        self.write(HistoryBatch(until.end_ms, spans, holds, pods, use, gaps))

    def __repr__(self) -> str:
        return f"MemoryReader({self.until}, {self.all_spans}, {self.all_holds})"

    def known(self) -> Period:
        return self.until

    def use_by_pod(self, period: Period) -> Iterator[UseSum]:
        sums: dict[str, list[int]] = {}
        for one in self.use(period):
            found = sums.setdefault(one.pod_uid, [0, 0, 0])
            for number, amount in enumerate((one.measured_ms, one.use, one.idle_ms)):
                found[number] += amount
        return (UseSum(uid, *amounts) for uid, amounts in sums.items())
