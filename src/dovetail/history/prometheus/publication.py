# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus scrapes of a history: its last days, made from the file again and again.

Rules
- It is one file of series beside the file of the history (`FILE.published`), replaced as a whole. So a scrape has a
  state of the history, and the last one is there after a restart.
- All days from `KEPT_MS` before the end are in it, also those that are over: what changes late is corrected, and a
  Prometheus that was away for less loses nothing. After a restart it begins that long before the end of the last one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import IO, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dovetail.history import pod_days
from dovetail.history.prometheus import chunks
from dovetail.history.prometheus.chunks import Chunk, ChunkName, ColumnWriter, Day, T, chunk
from dovetail.history.prometheus.job_index import JobIndexer
from dovetail.history.records import DAY_MS, HOUR_MS, GpuHold, GpuSpan, Period, PodRecord
from dovetail.history.sqlite.file import open_to_read
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.store import HistoryReader, StoreError

KEPT_MS = 2 * DAY_MS
_CACHE_MIB = 2
"""Of the file: a day is read in its order, mostly once. More would be memory of the collector, and no faster."""
_FIRST_LINE = re.compile(r"# store ([0-9a-f]{16}) until (\d+)\n")
_R = TypeVar("_R", GpuSpan, GpuHold)


class Published(Struct, frozen=True):
    """What was written: the days, the series, the bytes, and the end of what is known."""

    days: int = 0
    series: int = 0
    bytes: int = 0
    until_ms: int = 0


class Publication:
    """The file beside a history. One thread at a time calls it."""

    def __init__(self, store: Path, kept_ms: int = KEPT_MS) -> None:
        self.path = self.beside(store)
        self._store, self._kept_ms = store, kept_ms
        self.name, self._until_ms = _first_line(self.path)
        """The name of the history in a Prometheus that has several, and the end of what was published before."""
        self._began_ms: int | None = None

    @staticmethod
    def beside(store: Path) -> Path:
        """The file of this history."""
        return store.with_name(f"{store.name}.published")

    def publish(self) -> Published:
        """Replace the file. Raises StoreError."""
        with closing(SqliteReader(self._store, open_to_read(self._store, _CACHE_MIB))) as reader:
            known = reader.known()
            if not known.ms:
                return Published()
            if self._began_ms is None:
                self._began_ms, self._until_ms = known.end_ms, self._until_ms or known.end_ms
            fresh = known.end_ms < self._began_ms + self._kept_ms
            since_ms = max(known.start_ms, (self._until_ms if fresh else known.end_ms) - self._kept_ms)
            days = [Period(at, at + DAY_MS) for at in range(since_ms // DAY_MS * DAY_MS, known.end_ms, DAY_MS)]
            written = self.path.with_name(f"{self.path.name}.new")
            try:
                with written.open("w", encoding="ascii") as file:
                    file.write(f"# store {self.name} until {known.end_ms}\n")
                    series = _write_days(file, self.name, reader, days)
                size = written.stat().st_size
                written.replace(self.path)
            except OSError as error:
                fix = "make room on its disk, and let this process write there"
                raise StoreError(str(written), f"it cannot be written ({error.strerror})", fix) from error
        return Published(len(days), series, size, known.end_ms)


def _first_line(path: Path) -> tuple[str, int]:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            found = _FIRST_LINE.fullmatch(file.readline(100))
    except OSError:
        found = None
    return (found[1], int(found[2])) if found else (token_hex(8), 0)


def _write_days(file: IO[str], name: str, reader: HistoryReader, days: Iterable[Period]) -> int:
    """Write the series of these days of a history; returns their number. Raises StoreError and OSError."""
    known, series, lists = reader.known(), 0, []
    seen: set[str] = set()
    file.write(chunks.header(chunks.PART))
    for day in days:
        named = []
        for one in day_chunks(reader, day):
            named.append(one.of)
            series += _write(file, name, one, seen)
        listed = day_list(known, day, named)
        series += _write(file, name, listed, seen)
        lists.append(chunks.day_line(name, day_name(day.start_ms), listed, known.end_ms))
    file.write(chunks.header(chunks.DAY))
    file.writelines(lists)
    return series + len(lists)


def day_list(known: Period, day: Period, named: list[ChunkName]) -> Chunk:
    """The chunk that lists those of a day."""
    return chunk("day", day.start_ms, chunks.encoded(Day(known.start_ms, named)))


def _write(file: IO[str], name: str, one: Chunk, seen: set[str]) -> int:
    if one.of.name in seen:
        return 0
    seen.add(one.of.name)
    file.writelines(one.lines(name))
    return one.of.parts


def day_chunks(reader: HistoryReader, day: Period) -> Iterator[Chunk]:
    """All of a day. Raises StoreError."""
    # A record without length at the start of the day touches no other period.
    there = Period(day.start_ms - 1, day.end_ms)
    uids: dict[str, int] = {}
    yield from _by_end("span", reader.spans(there), day, chunks.SPANS)
    yield from _by_end("hold", _noted(reader.holds(there), uids), day, chunks.HOLDS)
    yield from _pods(reader, there, day, uids)
    for at_ms in range(day.start_ms, day.end_ms, HOUR_MS):
        hour = Period(at_ms, at_ms + HOUR_MS)
        yield from _chunk("use", at_ms, chunks.USE, reader.use(hour))
        yield from _chunk("pod_use", at_ms, chunks.POD_USE, reader.use_by_pod(hour))
    yield from _chunk("gap", 0, chunks.GAPS, reader.gaps(there))
    for sums in reader.day_sums(day):
        yield chunk("sums", 0, chunks.encoded(sums))
    for of_pods in reader.pod_days(day):
        yield chunk("pod_sums", 0, pod_days.encoded(of_pods))


def _chunk(
    kind: chunks.Kind, at_ms: int, form: chunks.RecordColumns[T], records: Iterable[T]
) -> Iterator[Chunk]:  # fmt: skip
    """The chunk of these records, if there are any."""
    left = iter(records)
    if (first := next(left, None)) is not None:
        yield chunk(kind, at_ms, form.encoded(chain((first,), left)))


def _noted(holds: Iterable[GpuHold], uids: dict[str, int]) -> Iterator[GpuHold]:
    """The same; the uids of their pods are noted, with 0."""
    for hold in holds:
        uids[hold.pod_uid] = 0
        yield hold


def _by_end(
    kind: chunks.Kind, records: Iterable[_R], day: Period, form: chunks.RecordColumns[_R]
) -> Iterator[Chunk]:  # fmt: skip
    """By the hour in which they ended, so that chunks do not change once the hour is over."""
    hours: dict[int, ColumnWriter[_R]] = defaultdict(form.writer)
    for one in records:
        ended = replace(one, end_ms=0) if one.end_ms > day.end_ms else one
        hours[_hour(ended.end_ms)].add(ended)
    for at_ms in sorted(hours):
        yield chunk(kind, at_ms, hours.pop(at_ms).written())


def _pods(reader: HistoryReader, there: Period, day: Period, uids: dict[str, int]) -> Iterator[Chunk]:
    """The same of pods: those with these uids, and those that were there. They are large, so they are read twice: for
    the hours in which they ended, and hour by hour."""
    jobs = JobIndexer()
    for pod in chain(reader.pods_of(uids), reader.pods(there)):
        uids[pod.uid] = _hour(_pod(pod, day).ended_ms)
        jobs.add(pod.job, uids[pod.uid])
    hours: dict[int, list[str]] = defaultdict(list)
    for uid, at_ms in uids.items():
        hours[at_ms].append(uid)
    for at_ms in sorted(hours):
        yield from _chunk("pod", at_ms, chunks.PODS, (_pod(pod, day) for pod in reader.pods_of(hours.pop(at_ms))))
    if uids:
        yield chunk("pod_jobs", 0, chunks.encoded(jobs.made()))


def _hour(ms: int) -> int:
    return ms - ms % HOUR_MS


def _pod(pod: PodRecord, day: Period) -> PodRecord:
    """As it was at the end of the day."""
    if pod.started_ms > day.end_ms:
        pod = replace(pod, started_ms=0)
    return replace(pod, ended_ms=0, outcome="", code="", message="") if pod.ended_ms > day.end_ms else pod


def day_name(at_ms: int) -> str:
    """`2026-11-05`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")
