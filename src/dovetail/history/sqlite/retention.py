# SPDX-License-Identifier: Apache-2.0
"""What is dropped from a file, and when; hours of use are added up to days first.

Rules
- Work is done in steps of a bounded size, each a transaction of its own: an hour of use, some GPUs, some pods. So the
  next batch never waits for long.
- A step is done once or not at all. A day that is half added up is right: its other hours are still there.
- What has not ended is kept, and gaps are. A pod is kept as long as there is a record of what it held. The id of a pod
  that was dropped is dropped, and never used again. The sums of a day are dropped before anything else of the day.
"""

from __future__ import annotations

import sqlite3

from msgspec import Struct

from dovetail.history.records import DAY_MS
from dovetail.history.sqlite import uses

_GPUS_AT_ONCE = 256
_ROWS_AT_ONCE = 5000


class Retention(Struct, frozen=True):
    """For how many days things are kept: use by hour, use by day, and spans, holds and pods after their end."""

    hours_days: int = 35
    days_days: int = 400
    records_days: int = 400


class Sweep:
    """The steps, again and again over all that is in a file. Runs inside of transactions of others."""

    def __init__(self, file: sqlite3.Connection, retention: Retention) -> None:
        self._run = file.execute
        self._retention = retention
        self._gpu = 0
        """The last GPU of which the spans and holds were swept."""
        self._swept_day = -1

    def step(self, now_ms: int) -> bool:
        """One step. Whether there is more to do."""
        keep = self._retention
        self._run("DELETE FROM day_sums WHERE start_ms < ?", (self.kept_since_ms(now_ms),))
        return (
            self._add_up(now_ms - keep.hours_days * DAY_MS)
            or self._drop_use(now_ms - keep.days_days * DAY_MS)
            or self._drop_of_gpus(now_ms - keep.records_days * DAY_MS)
            or self._drop_pods(now_ms - keep.records_days * DAY_MS)
        )

    def kept_since_ms(self, now_ms: int) -> int:
        """Since when use and records are kept."""
        return now_ms - min(self._retention.days_days, self._retention.records_days) * DAY_MS

    def _add_up(self, before_ms: int) -> bool:
        """Add the oldest hour to its day."""
        run = self._run
        (hour_ms,) = run(
            "SELECT min(start_ms) FROM hours WHERE start_ms < ?", (before_ms // DAY_MS * DAY_MS,)
        ).fetchone()
        if hour_ms is None:
            return False
        rows = run("SELECT * FROM hours WHERE start_ms = ?", (hour_ms,)).fetchall()
        for _, gpu, pod, _, *amounts in rows:
            uses.add_to_day(run, (hour_ms // DAY_MS * DAY_MS, gpu, pod), tuple(amounts))
        run("DELETE FROM hours WHERE start_ms = ?", (hour_ms,))
        return True

    def _drop_use(self, before_ms: int) -> bool:
        """Drop some of the days that begin before the time."""
        oldest_ms = before_ms // DAY_MS * DAY_MS
        for table, key in (("days", "start_ms, gpu, pod"), ("pod_days", "start_ms, pod")):
            some = f"SELECT {key} FROM {table} WHERE start_ms < ? LIMIT {_ROWS_AT_ONCE}"
            if self._run(f"DELETE FROM {table} WHERE ({key}) IN ({some})", (oldest_ms,)).rowcount:
                return True
        return False

    def _drop_pods(self, before_ms: int) -> bool:
        """Drop some of the pods that ended, a day after all that belongs to them."""
        held = "EXISTS (SELECT 1 FROM holds WHERE pod = pods.id)"
        ended = f"SELECT id FROM pods WHERE ended_ms > 0 AND ended_ms < ? AND NOT {held} LIMIT {_ROWS_AT_ONCE}"
        found = self._run(ended, (before_ms - DAY_MS,)).fetchall()
        for row in found:
            self._run("DELETE FROM pods WHERE id = ?", row)
            self._run("DELETE FROM pod_ids WHERE id = ?", row)
        return bool(found)

    def _drop_of_gpus(self, before_ms: int) -> bool:
        """Drop what ended of the next GPUs; once a day of all of them."""
        if self._swept_day == before_ms // DAY_MS:
            return False
        some = "SELECT id FROM gpu_ids WHERE id > ? ORDER BY id LIMIT ?"
        gpus = self._run(some, (self._gpu, _GPUS_AT_ONCE)).fetchall()
        for row in gpus:
            for table in ("spans", "holds"):
                ended = "gpu = ? AND start_ms < ? AND end_ms > 0 AND end_ms < ?"
                self._run(f"DELETE FROM {table} WHERE {ended}", (*row, before_ms, before_ms))
        if gpus:
            self._gpu = gpus[-1][0]
            return True
        self._run("UPDATE store SET first_ms = max(first_ms, min(until_ms, ?))", (before_ms,))
        self._gpu, self._swept_day = 0, before_ms // DAY_MS
        return False
