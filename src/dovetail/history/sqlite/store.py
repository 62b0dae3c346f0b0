# SPDX-License-Identifier: Apache-2.0
"""The writer of a file.

Rules
- A batch is one transaction. After an error nothing of it is written, and the next batch may be.
- One thread at a time calls it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import astuple

from dovetail.history.gpu_use import NEVER_MS
from dovetail.history.records import DAY_MS, HistoryBatch, PodRecord, UseHour
from dovetail.history.sqlite import uses
from dovetail.history.sqlite.file import lock, open_to_write, reported
from dovetail.history.sqlite.reader import KINDS, SqliteReader
from dovetail.history.sqlite.retention import Retention, Sweep
from dovetail.history.sqlite.sums import DaySumMaker, Touched

_LABELS = PodRecord.__struct_fields__.index("labels")
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
_SPAN = """
SELECT end_ms, node, gpu_index, gpus, model, health, instance_type, region, zone, spot FROM spans
WHERE gpu = ? AND start_ms = ?
"""
_HOLD = """
SELECT end_ms, milli, named FROM holds WHERE gpu = ? AND start_ms = ? AND pod = ? AND device = ?
"""
_SUMMED_FIELDS = ("namespace", "name", "job", "user", "queue", "submitted_ms", "bound_ms")
"""What of a pod is in the sums of all days in which it held GPUs."""
_POD = f"SELECT {', '.join(_SUMMED_FIELDS)}, started_ms, ended_ms FROM pods WHERE id = ?"
_HELD = f"SELECT min(start_ms), max(CASE end_ms WHEN 0 THEN {NEVER_MS} ELSE end_ms END) FROM holds WHERE pod = ?"
_HOUR = "SELECT measured_ms, use, idle_ms FROM hours WHERE start_ms = ? AND gpu = ? AND pod = ? AND source = ?"
_ADD_DAY = """
INSERT INTO pod_days VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
  measured_ms = measured_ms + excluded.measured_ms, use = use + excluded.use, idle_ms = idle_ms + excluded.idle_ms
"""
_REMEMBERED = 100_000
"""Ids of pods that are known without a look into the file."""


class _Ids:
    """The ids of names in one table; unknown names get one."""

    def __init__(self, store: SqliteStore, table: str, column: str) -> None:
        self._store = store
        self._find = f"SELECT id FROM {table} WHERE {column} = ?"
        self._add = f"INSERT INTO {table} ({column}) VALUES (?)"
        self._known: dict[str, int] = {}

    def of(self, name: str) -> int:
        known = self._known.get(name)
        if known is None:
            found = self._store.run(self._find, (name,)).fetchone()
            known = found[0] if found else self._store.run(self._add, (name,)).lastrowid
            assert known is not None
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[name] = known
        return known

    def forget(self) -> None:
        """Ids may not be in the file after all."""
        self._known.clear()


class SqliteStore(SqliteReader):
    """A `HistoryStore` in a file, which is made if it is not there. Raises StoreError.

    `at_step` is called before each step of a batch; tests end the process there."""

    def __init__(
        self,
        path: Path,
        retention: Retention | None = None,
        cache_mib: int = 16,
        at_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._lock = lock(path)
        try:
            super().__init__(path, open_to_write(path, cache_mib))
        except BaseException:
            self._lock.close()
            raise
        self.run = self._file.execute
        self._at_step = at_step
        self._gpu_ids = _Ids(self, "gpu_ids", "name")
        self._pod_ids = _Ids(self, "pod_ids", "uid")
        self._activities = _Ids(self, "use_activities", "name")
        self._sources = _Ids(self, "use_sources", "name")
        self._sweep = Sweep(self._file, retention or Retention())
        self._sums = DaySumMaker(self, self.run)

    def close(self) -> None:
        with reported(self.path):
            super().close()
        self._lock.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with reported(self.path):
            self._at_step("begin")
            self.run("BEGIN IMMEDIATE")
            try:
                yield
                self._at_step("commit")
                self.run("COMMIT")
            except BaseException:
                for ids in (self._gpu_ids, self._pod_ids, self._activities, self._sources):
                    ids.forget()
                if self._file.in_transaction:
                    self.run("ROLLBACK")
                raise
            self._at_step("committed")

    def write(self, batch: HistoryBatch) -> None:
        with self._transaction():
            touched = Touched()
            self._write_pods(batch.pods, touched)
            self._at_step("spans")
            for span in batch.spans:
                at = self._gpu_ids.of(span.gpu), span.start_ms
                values = (
                    *(span.end_ms, span.node, span.index, span.gpus, span.model, span.health),
                    *(span.instance_type, span.region, span.zone, span.spot),
                )
                touched.replace(span.start_ms, self.run(_SPAN, at).fetchone(), values)
                self.run("INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*at, *values))
            self._at_step("holds")
            for hold in batch.holds:
                key = self._gpu_ids.of(hold.gpu), hold.start_ms, self._pod(hold.pod_uid), hold.device
                before = self.run(_HOLD, key).fetchone()
                touched.replace(hold.start_ms, before, (hold.end_ms, hold.milli, hold.named))
                held = (*key, hold.end_ms, hold.milli, _NUMBERS[hold.kind], hold.named)
                self.run("INSERT OR REPLACE INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, ?)", held)
            self._at_step("use")
            self._put_use(batch.use, touched)
            self._at_step("sums")
            self._sums.drop(touched)
            self._at_step("gaps")
            for gap in batch.gaps:
                self.run("INSERT OR REPLACE INTO gaps VALUES (?, ?, ?)", (gap.start_ms, gap.end_ms, gap.reason))
            self.run(
                "UPDATE store SET first_ms = min(coalesce(first_ms, ?1), ?1), until_ms = max(until_ms, ?2)",
                (_first_ms(batch), batch.until_ms),
            )

    def _pod(self, uid: str) -> int:
        return self._pod_ids.of(uid) if uid else 0

    def _write_pods(self, records: Iterable[PodRecord], touched: Touched) -> None:
        self._at_step("pods")
        for record in records:
            self._touch_pod(record, touched)
            values = [self._pod(record.uid), *astuple(record)[1:]]
            values[_LABELS] = msgspec.json.encode(record.labels).decode()
            self.run(f"INSERT OR REPLACE INTO pods VALUES ({', '.join('?' * len(values))})", values)

    def _touch_pod(self, record: PodRecord, touched: Touched) -> None:
        pod = self._pod(record.uid)
        start_ms, end_ms = self.run(_HELD, (pod,)).fetchone()
        if start_ms is None:
            return
        before = self.run(_POD, (pod,)).fetchone()
        if before is None or before[:-2] != tuple(getattr(record, name) for name in _SUMMED_FIELDS):
            touched.add(start_ms, end_ms)
            return
        # What is new may be the end of its start-up.
        started = [start or end for start, end in (before[-2:], (record.started_ms, record.ended_ms))]
        touched.replace(start_ms, (started[0],), (started[1],))

    def _put_use(self, hours: Iterable[UseHour], touched: Touched) -> None:
        """The hours, and what they change of the sums of each pod and day."""
        by_day: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        for hour in hours:
            source = self._sources.of(hour.source) if hour.source else 0
            key = hour.hour_ms, self._gpu_ids.of(hour.gpu), self._pod(hour.pod_uid), source
            activity = {self._activities.of(name): amount for name, amount in hour.activity.items()}
            amounts = hour.measured_ms, hour.use, hour.idle_ms
            before = self.run(_HOUR, key).fetchone() or (0, 0, 0)
            rest = hour.memory_peak_mib, hour.used_until_ms, uses.encoded(hour.histogram, activity)
            self.run("INSERT OR REPLACE INTO hours VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*key, *amounts, *rest))
            sums = by_day[hour.hour_ms // DAY_MS * DAY_MS, key[2]]
            for number, amount in enumerate(amounts):
                sums[number] += amount - before[number]
        for (day_ms, pod), sums in by_day.items():
            self.run(_ADD_DAY, (day_ms, pod, *sums))
            if pod and (sums[0] or sums[1]):
                touched.add(day_ms, day_ms + DAY_MS)

    def open_records(self) -> HistoryBatch:
        ((until_ms,),) = self._rows("SELECT until_ms FROM store")
        spans = list(self._spans("end_ms = 0"))
        holds = list(self._holds("end_ms = 0"))
        pods = list(self._pods("ended_ms = 0 ORDER BY submitted_ms, uid", ()))
        return HistoryBatch(until_ms, spans, holds, pods)

    def retain(self, now_ms: int) -> bool:
        """Do one bounded part of what there is to do: drop what is old, add up days. Returns whether there is more."""
        with self._transaction():
            # Ids of pods may be dropped.
            self._pod_ids.forget()
            return self._sweep.step(now_ms) or self._sums.step(self._sweep.kept_since_ms(now_ms))


def _first_ms(batch: HistoryBatch) -> int:
    starts = [one.start_ms for some in (batch.spans, batch.holds, batch.gaps) for one in some]
    starts += [one.hour_ms for one in batch.use]
    return min(starts, default=batch.until_ms)
