# SPDX-License-Identifier: Apache-2.0
"""Batches that are collected, and written together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.history.records import HistoryBatch

if TYPE_CHECKING:
    from dovetail.history.records import Gap, GpuHold, GpuSpan, PodRecord, UseHour


class Collected:
    """Batches in their order, as one. `size` is the number of their records."""

    def __init__(self) -> None:
        self.until_ms = 0
        self._spans: list[GpuSpan] = []
        self._holds: list[GpuHold] = []
        self._pods: dict[str, PodRecord] = {}
        self._use: list[UseHour] = []
        self._gaps: list[Gap] = []

    @property
    def size(self) -> int:
        return len(self._spans) + len(self._holds) + len(self._pods) + len(self._use) + len(self._gaps)

    def add(self, batch: HistoryBatch) -> None:
        self.until_ms = max(self.until_ms, batch.until_ms)
        self._spans += batch.spans
        self._holds += batch.holds
        # Only the last record of a pod is kept.
        self._pods |= {record.uid: record for record in batch.pods}
        self._use += batch.use
        self._gaps += batch.gaps

    def take(self) -> HistoryBatch:
        """All of it, which is forgotten here."""
        taken = HistoryBatch(self.until_ms, self._spans, self._holds, list(self._pods.values()), self._use, self._gaps)
        self._spans, self._holds, self._pods, self._use, self._gaps = [], [], {}, [], []
        return taken

    def put_back(self, taken: HistoryBatch) -> None:
        """Collect again what could not be written, before all that came since."""
        self._spans = [*taken.spans, *self._spans]
        self._holds = [*taken.holds, *self._holds]
        self._pods = {record.uid: record for record in taken.pods} | self._pods
        self._use = [*taken.use, *self._use]
        self._gaps = [*taken.gaps, *self._gaps]
