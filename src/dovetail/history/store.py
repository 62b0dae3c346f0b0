# SPDX-License-Identifier: Apache-2.0
"""Where the past is kept: what each store can do, and how it fails.

Rules
- A batch is written whole or not at all, and is on disk when `write` returns.
- Readers see whole batches. What they get for a period touches it; it is not clipped to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from dovetail.history.day_sums import DaySums
from dovetail.history.pod_days import PodDay
from dovetail.history.records import Gap, GpuHold, GpuSpan, HistoryBatch, Period, PodRecord, UseHour, UseSum


class StoreError(Exception):
    """A store that cannot be opened, read or written. `where` is the file or the address, `rule` what is wrong, `fix`
    what to do about it."""

    def __init__(self, where: str, rule: str, fix: str) -> None:
        super().__init__(where, rule, fix)
        self.where, self.rule, self.fix = where, rule, fix

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}; {self.fix}"


class HistoryReader(Protocol):
    """Methods raise StoreError."""

    def known(self) -> Period:
        """From the first record to the time up to which all is known; an empty period at 0 where there is nothing."""

    def spans(self, period: Period) -> Iterator[GpuSpan]:
        """By GPU, and by start."""

    def holds(self, period: Period) -> Iterator[GpuHold]:
        """By GPU, start, pod and device."""

    def pods(self, period: Period) -> Iterator[PodRecord]:
        """Pods that were there at some time of the period, from submitted to ended."""

    def pods_of(self, uids: Collection[str]) -> Iterator[PodRecord]:
        """The pods with these uids."""

    def job(self, name: str, namespace: str = "") -> Iterator[PodRecord]:
        """All pods of the jobs of this name, in any namespace if none is named, by the time of their submission."""

    def use(self, period: Period) -> Iterator[UseHour]:
        """Hours, or days where hours are not kept any more (`hour_ms` is then the start of the day), that begin in the
        period."""

    def use_by_pod(self, period: Period) -> Iterator[UseSum]:
        """The use of each pod in the period, all hours and GPUs together."""

    def pod_names(self, period: Period) -> Iterator[PodRecord]:
        """As `pods`, in any order, with uid, namespace, name, job, kind, user, queue, labels, and when they were
        submitted and bound alone."""

    def day_sums(self, period: Period) -> Iterator[DaySums]:
        """Whole UTC days of the period that the store has added up, by time: all, some or none of them."""

    def pod_days(self, period: Period) -> Iterator[PodDay]:
        """The same by pod and node."""

    def gaps(self, period: Period) -> Iterator[Gap]:
        """By start."""


class HistoryStore(HistoryReader, Protocol):
    """Methods raise StoreError."""

    def write(self, batch: HistoryBatch) -> None:
        """Write a batch."""

    def open_records(self) -> HistoryBatch:
        """Spans, holds and pods without an end, as they were written last: what a process that starts goes on from.
        `until_ms` is the time up to which all is known, 0 where there is nothing."""
