# SPDX-License-Identifier: Apache-2.0
"""What is in a file.

Rules
- A reader that opens a file itself sees it as it was at that moment, in all its answers together. Open a new one to see
  more. It holds back nothing of the writer, but the log beside the file grows meanwhile.
- GPUs come in the order of their names.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, get_args

from dovetail.core.json_text import decode_json
from dovetail.history import day_sums, pod_days
from dovetail.history.day_sums import DaySums
from dovetail.history.pod_days import PodDay
from dovetail.history.records import (
    DAY_MS,
    USE_BINS,
    Gap,
    GpuHold,
    GpuSpan,
    HoldKind,
    Period,
    PodRecord,
    UseHour,
    UseSum,
)
from dovetail.history.sqlite import uses
from dovetail.history.sqlite.file import PODS_SINCE, SUMS_SINCE, open_to_read, reported

KINDS: tuple[HoldKind, ...] = get_args(HoldKind)
"""Of holds, by their numbers in the file."""
_SPANS = """
SELECT name, node, gpu_index, gpus, model, health, start_ms, end_ms, instance_type, region, zone, spot
FROM spans JOIN gpu_ids ON gpu_ids.id = spans.gpu
"""
_HOLDS = """
SELECT uid, name, milli, kind, start_ms, end_ms, device, named
FROM gpu_ids CROSS JOIN holds ON holds.gpu = gpu_ids.id JOIN pod_ids ON pod_ids.id = holds.pod
"""
_OF_GPUS = """
SELECT gpu, uid, milli, kind, start_ms, end_ms, device, named FROM holds JOIN pod_ids ON pod_ids.id = holds.pod
WHERE gpu IN (%s) AND
"""
_FROM_FIRST = f"{_OF_GPUS} start_ms < ?2 AND (+end_ms = 0 OR +end_ms > ?1)"
_FROM_LAST = f"{_OF_GPUS} end_ms > ?1 AND +start_ms < ?2 UNION ALL {_OF_GPUS} end_ms < 1 AND +start_ms < ?2"
"""The holds of some GPUs that touch a period, found from the first one on or from the last: with a + before it a column
is not searched in an index. `end_ms < 1` is 0, for which SQLite would search the table."""
_HOLDS_OF = """
SELECT uid, name, milli, kind, start_ms, end_ms, device, named
FROM pod_ids CROSS JOIN holds ON holds.pod = pod_ids.id JOIN gpu_ids ON gpu_ids.id = holds.gpu
"""
_POD_FIELDS = PodRecord.__struct_fields__
_POD_FIELDS_OF_OLD = _POD_FIELDS[: _POD_FIELDS.index("cpu_milli")]
_NAMES = """
SELECT uid, namespace, name, job, kind, user, queue, labels, submitted_ms, bound_ms FROM pods JOIN pod_ids USING (id)
WHERE submitted_ms < ? AND (ended_ms = 0 OR ended_ms > ?)
"""
_LABELS = PodRecord.__struct_fields__.index("labels")
_DAYS = """
SELECT gpu_ids.name, coalesce(uid, ''), start_ms, measured_ms, use, idle_ms, memory_peak_mib, detail, used_until_ms, ''
FROM days JOIN gpu_ids ON gpu_ids.id = gpu LEFT JOIN pod_ids ON pod_ids.id = pod
WHERE start_ms >= ? AND start_ms < ? ORDER BY start_ms, gpu_ids.name, 2
"""
_HOURS = """
SELECT gpu_ids.name, coalesce(uid, ''), start_ms, measured_ms, use, idle_ms, memory_peak_mib, detail, used_until_ms,
  coalesce(use_sources.name, '')
FROM hours JOIN gpu_ids ON gpu_ids.id = gpu LEFT JOIN pod_ids ON pod_ids.id = pod
  LEFT JOIN use_sources ON use_sources.id = source
WHERE start_ms >= ? AND start_ms < ? ORDER BY start_ms, gpu_ids.name, 2, 10
"""
_DETAIL = 7
_USE_BY_POD = """
SELECT coalesce(uid, ''), sum(measured_ms), sum(use), sum(idle_ms) FROM (
  SELECT pod, measured_ms, use, idle_ms FROM pod_days WHERE start_ms >= ?1 AND start_ms < ?2
  UNION ALL SELECT pod, measured_ms, use, idle_ms FROM hours WHERE start_ms >= ?3 AND start_ms < min(?1, ?4)
  UNION ALL SELECT pod, measured_ms, use, idle_ms FROM hours WHERE start_ms >= max(?2, ?3) AND start_ms < ?4
) LEFT JOIN pod_ids ON pod_ids.id = pod GROUP BY pod ORDER BY 1
"""
_TOUCHES = "start_ms < ? AND (end_ms = 0 OR end_ms > ?)"
_D = TypeVar("_D")
_AT_ONCE = 500
"""Values in one question; SQLite has a bound for them."""
_GPUS_AT_ONCE = 100
_BY_GPU = attrgetter("gpu", "start_ms", "pod_uid", "device")


class SqliteReader:
    """A `HistoryReader` of a file. `file` is a connection that is open already. Raises StoreError."""

    def __init__(self, path: Path, file: sqlite3.Connection | None = None) -> None:
        self.path = path
        self._file = file or open_to_read(path)

    def close(self) -> None:
        self._file.close()

    def _rows(self, question: str, values: Collection[object] = ()) -> Iterator[Any]:
        with reported(self.path):
            yield from self._file.execute(question, tuple(values))

    def _format(self) -> int:
        ((found,),) = self._rows("PRAGMA user_version")
        return int(found)

    def known(self) -> Period:
        ((first_ms, until_ms),) = self._rows("SELECT first_ms, until_ms FROM store")
        return Period(first_ms, max(first_ms, until_ms)) if first_ms is not None else Period(0, 0)

    def spans(self, period: Period) -> Iterator[GpuSpan]:
        return self._spans(_TOUCHES, period.end_ms, period.start_ms)

    def _spans(self, where: str, *values: int) -> Iterator[GpuSpan]:
        for *row, spot in self._rows(f"{_SPANS} WHERE {where} ORDER BY name, start_ms", values):
            row.append(spot == 1)
            yield GpuSpan(*row)

    def gpus(self) -> list[tuple[int, str]]:
        """The ids and names of all GPUs, in the order of the names."""
        return list(self._rows("SELECT id, name FROM gpu_ids ORDER BY name"))

    def spans_on(self, gpus: Sequence[tuple[int, str]], period: Period) -> Iterator[GpuSpan]:
        """Those of a few GPUs."""
        ids = [gpu for gpu, _ in gpus]
        return self._spans(f"gpu IN ({_marks(ids)}) AND {_TOUCHES}", *ids, period.end_ms, period.start_ms)

    def holds(self, period: Period) -> Iterator[GpuHold]:
        return self.holds_on(self.gpus(), period)

    def holds_on(self, gpus: Iterable[tuple[int, str]], period: Period) -> Iterator[GpuHold]:
        """Those of these GPUs."""
        # A few GPUs at a time, as the holds of one are beside each other, so that only few have to be sorted.
        kinds, known = KINDS, self.known()
        later = known.end_ms - period.end_ms < period.start_ms - known.start_ms
        question = _FROM_LAST if later else _FROM_FIRST
        left = iter(gpus)
        while some := list(islice(left, _GPUS_AT_ONCE)):
            names = dict(some)
            marks = ", ".join(map(str, names))
            found = [
                GpuHold(uid, names[gpu], milli, kinds[kind], start_ms, end_ms, device, named == 1)
                for gpu, uid, milli, kind, start_ms, end_ms, device, named in self._rows(
                    question.replace("%s", marks), (period.start_ms, period.end_ms)
                )
            ]
            found.sort(key=_BY_GPU)
            yield from found

    def holds_of(self, uids: Collection[str]) -> Iterator[GpuHold]:
        """What these pods hold and held, by GPU, start, pod and device."""
        found: list[GpuHold] = []
        for some in _portions(uids):
            found += self._holds(f"uid IN ({_marks(some)})", some, _HOLDS_OF)
        return iter(sorted(found, key=lambda one: (one.gpu, one.start_ms, one.pod_uid, one.device)))

    def _holds(self, where: str, values: Collection[object] = (), question: str = _HOLDS) -> Iterator[GpuHold]:
        kinds, ordered = KINDS, f"{question} WHERE {where} ORDER BY name, start_ms, uid, device"
        for uid, gpu, milli, kind, start_ms, end_ms, device, named in self._rows(ordered, values):
            yield GpuHold(uid, gpu, milli, kinds[kind], start_ms, end_ms, device, named == 1)

    def pods(self, period: Period) -> Iterator[PodRecord]:
        """By the time when they were submitted."""
        where = "submitted_ms < ? AND (ended_ms = 0 OR ended_ms > ?)"
        return self._pods(f"{where} ORDER BY submitted_ms, uid", (period.end_ms, period.start_ms))

    def pods_of(self, uids: Collection[str]) -> Iterator[PodRecord]:
        for some in _portions(uids):
            yield from self._pods(f"uid IN ({_marks(some)}) ORDER BY uid", some)

    def job(self, name: str, namespace: str = "") -> Iterator[PodRecord]:
        within, values = ("namespace = ? AND ", (namespace, name)) if namespace else ("", (name,))
        return self._pods(f"{within}job = ? ORDER BY submitted_ms, uid", values)

    def _pods(self, where: str, values: Collection[object]) -> Iterator[PodRecord]:
        known: dict[str, dict[str, str]] = {}
        columns = ", ".join(_POD_FIELDS if self._format() >= PODS_SINCE else _POD_FIELDS_OF_OLD)
        for row in self._rows(f"SELECT {columns} FROM pods JOIN pod_ids USING (id) WHERE {where}", values):
            # The pods of a job have the same labels.
            labels = known.get(row[_LABELS])
            if labels is None:
                with reported(self.path):
                    labels = known[row[_LABELS]] = decode_json(row[_LABELS], dict[str, str])
            values_by_field = [*row]
            values_by_field[_LABELS] = labels
            yield PodRecord(*values_by_field)

    def use(self, period: Period) -> Iterator[UseHour]:
        """By start, GPU, pod and source; days first, in which all sources are added up."""
        names = dict(self._rows("SELECT id, name FROM use_activities"))
        for question in (_DAYS, _HOURS):
            for row in self._rows(question, (period.start_ms, period.end_ms)):
                with reported(self.path):
                    histogram, activity = uses.decoded(row[_DETAIL], names, USE_BINS)
                values = [*row]
                values[_DETAIL : _DETAIL + 1] = histogram, activity
                yield UseHour(*values)

    def use_by_pod(self, period: Period) -> Iterator[UseSum]:
        """The use of each pod in the period, all together; by uid. Whole days come from sums that are kept; where hours
        are not kept any more, days count only if all of them is in the period."""
        first_ms, last_ms = -(-period.start_ms // DAY_MS) * DAY_MS, period.end_ms // DAY_MS * DAY_MS
        for row in self._rows(_USE_BY_POD, (first_ms, max(first_ms, last_ms), period.start_ms, period.end_ms)):
            yield UseSum(*row)

    def pod_names(self, period: Period) -> Iterator[PodRecord]:
        known: dict[str, dict[str, str]] = {}
        for row in self._rows(_NAMES, (period.end_ms, period.start_ms)):
            uid, namespace, name, job, kind, user, queue, text, submitted, bound = row
            labels = known.get(text)
            if labels is None:
                with reported(self.path):
                    labels = known[text] = decode_json(text, dict[str, str])
            names = uid, namespace, name, job, kind, user, queue
            yield PodRecord(*names, labels=labels, submitted_ms=submitted, bound_ms=bound)

    def day_sums(self, period: Period) -> Iterator[DaySums]:
        return self._days("sums", SUMS_SINCE, day_sums.decoded, period)

    def pod_days(self, period: Period) -> Iterator[PodDay]:
        return self._days("by_pod", PODS_SINCE, pod_days.decoded, period)

    def _days(self, column: str, since: int, decoded: Callable[[bytes], _D], period: Period) -> Iterator[_D]:
        if self._format() < since:
            return
        question = f"SELECT {column} FROM day_sums WHERE start_ms >= ? AND start_ms <= ? ORDER BY start_ms"
        for (blob,) in self._rows(question, (period.start_ms, period.end_ms - DAY_MS)):
            with reported(self.path):
                day = decoded(blob)
            yield day

    def gaps(self, period: Period) -> Iterator[Gap]:
        question = "SELECT start_ms, end_ms, reason FROM gaps WHERE start_ms < ? AND end_ms > ? ORDER BY 1, 2"
        for row in self._rows(question, (period.end_ms, period.start_ms)):
            yield Gap(*row)


def _portions(uids: Collection[str]) -> Iterator[list[str]]:
    left = iter(sorted(set(uids)))
    while some := list(islice(left, _AT_ONCE)):
        yield some


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))
