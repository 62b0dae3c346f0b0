# SPDX-License-Identifier: Apache-2.0
"""A history in a Prometheus, as a `HistoryReader`.

Rules
- The days that there are, and what each consists of, are asked for once. Chunks are asked for when a record of them is
  wanted, by day and kind, and of use by hour. All is as it was at the first question.
- Series that are there twice (two replicas, a collector whose address changed) count once. Names and hashes are
  checked: an answer in which something is missing is an error.
- Two histories in one Prometheus, or one history from two scrape jobs, are an error, until matchers choose: a scraped
  pod of a user could invent series.
- A day that is missing between others is an error where it is asked for: nothing is guessed. Before the first day that
  is there nothing is known.
- A record is that of the last day that was read of it (`chunks`): a hold or a span that ended after the period may have
  no end. Pods of a period are as they are at the end of the history.
- Days that ended more than `publication.KEPT_MS` ago are not corrected.
- Where a server or a gateway permits less than what is asked for at once, less is asked for, down to one chunk and one
  day; what is larger is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.json import Decoder

from dovetail.history.day_sums import DaySums
from dovetail.history.pod_days import PodDay
from dovetail.history.prometheus import chunks
from dovetail.history.prometheus.chunks import ChunkError, ChunkName, Day, Kind, RecordColumns
from dovetail.history.prometheus.job_index import JobIndex
from dovetail.history.prometheus.publication import day_name
from dovetail.history.records import DAY_MS, HOUR_MS, Gap, GpuHold, GpuSpan, Period, PodRecord, UseHour, UseSum
from dovetail.history.store import StoreError
from dovetail.kube.reading.prometheus_api import (
    AskedTooMuch,
    PrometheusAccess,
    PrometheusAnswer,
    PrometheusApi,
    PrometheusError,
)

_LOOK_BACK_DAYS = 400
_PARTS_AT_ONCE = 8_000
"""About 17 MB."""
_NAMES_AT_ONCE = 500
_MOST_PARTS = 400_000
"""Of one question: about 800 MB."""
_LARGEST = 1 << 53
_SCRAPE = "see whether each scrape of /history is whole, and whether the program is that of the collector's version"
_FOREIGN = 'choose the collector\'s with --prometheus-match, as in job="dovetail-collector"'
S = TypeVar("S")
T = TypeVar("T", bound=Struct)


class _DaySeries(Struct, frozen=True):
    """The labels of `dovetail_history_day`, with those of the scrape."""

    store: str = ""
    day: str = ""
    chunk: str = ""
    parts: str = ""
    job: str = ""
    namespace: str = ""


class _DayValue(Struct, frozen=True):
    metric: _DaySeries
    value: tuple[float, str]


class _PartSeries(Struct, frozen=True):
    chunk: str = ""
    part: str = ""
    data: str = ""


class _PartValue(Struct, frozen=True):
    metric: _PartSeries


_DAYS, _PARTS = Decoder(PrometheusAnswer[_DayValue]), Decoder(PrometheusAnswer[_PartValue])


class PrometheusReader:
    """A `HistoryReader` of a Prometheus. `matchers` are further ones (`matchers.is_matchers`). Raises StoreError."""

    def __init__(self, access: PrometheusAccess, matchers: str = "", *, timeout_s: float = 60.0) -> None:
        self._access, self._timeout_s = access, timeout_s
        self._matchers = matchers.strip()
        self._read: dict[str, Any] = {}
        """What was read of chunks, by name."""
        self._parts_at_once = _PARTS_AT_ONCE
        self._held_days: set[int] = set()
        """Of which holds were asked for."""
        self._summed_days: set[int] = set()
        """Of which sums by pod were asked for."""
        self._now_ms = self._until_ms = 0
        self._lists = self._list_days()
        self._known = self._knowledge()

    def close(self) -> None:
        """Nothing is open."""

    def known(self) -> Period:
        return self._known

    def spans(self, period: Period) -> Iterator[GpuSpan]:
        found = self._of_days(period, "span", chunks.SPANS, lambda one: (one.gpu, one.start_ms))
        return (one for _, one in sorted(found.items()) if _touches(one, period))

    def holds(self, period: Period) -> Iterator[GpuHold]:
        self._held_days.update(self._within(period))
        found = self._of_days(
            period, "hold", chunks.HOLDS, lambda one: (one.gpu, one.start_ms, one.pod_uid, one.device)
        )
        return (one for _, one in sorted(found.items()) if _touches(one, period))

    def pods(self, period: Period) -> Iterator[PodRecord]:
        """By the time when they were submitted."""
        until_end = Period(period.start_ms, max(period.end_ms, self._known.end_ms))
        found = [
            one
            for one in self._of_days(until_end, "pod", chunks.PODS, lambda one: one.uid).values()
            if _was_there(one, period)
        ]
        return iter(sorted(found, key=lambda one: (one.submitted_ms, one.uid)))

    def pods_of(self, uids: Collection[str]) -> Iterator[PodRecord]:
        """Of the days of which holds were asked for, and the last one; what is not there, of days of which sums by pod
        were."""
        if not uids:
            return iter(())
        days = sorted(self._held_days | {max(self._lists)})
        found = self._merged(days, "pod", chunks.PODS, lambda one: one.uid)
        if self._summed_days and not found.keys() >= set(uids):
            found = self._merged(sorted(self._summed_days), "pod", chunks.PODS, lambda one: one.uid) | found
        return (found[uid] for uid in sorted(set(uids)) if uid in found)

    def job(self, name: str, namespace: str = "") -> Iterator[PodRecord]:
        """Of a day that was published without an index of jobs all pods are read."""
        names = self._named(self._within(self._known))
        self._read_all([one for one in names if one.kind == "pod_jobs"], lambda blob: chunks.decoded(blob, JobIndex))
        wanted: list[ChunkName] = []
        for day in self._within(self._known):
            of_day = self._named([day])
            indices = [self._read[one.name].hours_of(name) for one in of_day if one.kind == "pod_jobs"]
            hours = set[int]().union(*indices)
            wanted += (one for one in of_day if one.kind == "pod" and (one.at_ms in hours or not indices))
        self._read_all(wanted, chunks.PODS.decoded)
        found = {pod.uid: pod for one in wanted for pod in self._read[one.name]}
        some = (pod for pod in found.values() if pod.job == name and namespace in ("", pod.namespace))
        return iter(sorted(some, key=lambda one: (one.submitted_ms, one.uid)))

    def use(self, period: Period) -> Iterator[UseHour]:
        """By start, GPU, pod and source."""
        found = self._of_hours(period, "use", chunks.USE)
        inside = (one for _, hours in found for one in hours if period.start_ms <= one.hour_ms < period.end_ms)
        return iter(sorted(inside, key=lambda one: (one.hour_ms, one.gpu, one.pod_uid, one.source)))

    def use_by_pod(self, period: Period) -> Iterator[UseSum]:
        """By uid."""
        sums: dict[str, list[int]] = {}
        for hour_ms, pods in self._of_hours(period, "pod_use", chunks.POD_USE):
            if period.start_ms <= hour_ms < period.end_ms:
                for one in pods:
                    found = sums.setdefault(one.pod_uid, [0, 0, 0])
                    for number, amount in enumerate((one.measured_ms, one.use, one.idle_ms)):
                        found[number] += amount
        return (UseSum(uid, *sums[uid]) for uid in sorted(sums))

    def day_sums(self, period: Period) -> Iterator[DaySums]:
        return self._days(self._whole_days(period), "sums", lambda blob: chunks.decoded(blob, DaySums))

    def pod_names(self, period: Period) -> Iterator[PodRecord]:
        """Day by day from the last one, and nothing of it is kept: of a long time there are very many."""
        seen: set[str] = set()
        for day in reversed(self._within(Period(period.start_ms, max(period.end_ms, self._known.end_ms)))):
            names = [name for name in self._named([day]) if name.kind == "pod"]
            self._read_all(names, chunks.PODS.decoded)
            for one in (pod for name in names for pod in self._read.pop(name.name, ())):
                if one.uid not in seen and _was_there(one, period):
                    yield one
                seen.add(one.uid)

    def pod_days(self, period: Period) -> Iterator[PodDay]:
        days = self._whole_days(period)
        self._summed_days.update(days)
        return self._days(days, "pod_sums", chunks.decoded_pod_day)

    def _whole_days(self, period: Period) -> list[int]:
        return [day for day in self._within(period) if period.start_ms <= day <= period.end_ms - DAY_MS]

    def _days(self, days: Iterable[int], kind: Kind, decode: Callable[[bytes], S]) -> Iterator[S]:
        """The sums of these days."""
        names = [name for name in self._named(days) if name.kind == kind]
        self._read_all(names, decode)
        # They are large, and asked for once.
        return (self._read.pop(name.name) for name in names)

    def gaps(self, period: Period) -> Iterator[Gap]:
        found = self._of_days(period, "gap", chunks.GAPS, lambda one: (one.start_ms, one.end_ms))
        return (
            one for _, one in sorted(found.items()) if one.start_ms < period.end_ms and one.end_ms > period.start_ms
        )

    def _of_days(self, period: Period, kind: Kind, form: RecordColumns[T], key: Callable[[T], Any]) -> dict[Any, T]:
        """The records of the days of a period."""
        return self._merged(self._within(period), kind, form, key)

    def _merged(self, days: Iterable[int], kind: Kind, form: RecordColumns[T], key: Callable[[T], Any]) -> dict[Any, T]:
        """The records of these days, by their key; that of the last day counts."""
        names = [name for name in self._named(days) if name.kind == kind]
        self._read_all(names, form.decoded)
        return {key(one): one for name in names for one in self._read[name.name]}

    def _of_hours(self, period: Period, kind: Kind, form: RecordColumns[T]) -> list[tuple[int, list[T]]]:
        """The records by the hour at which they begin, of hours that touch the period."""
        first_ms = period.start_ms - HOUR_MS
        names = [
            name
            for name in self._named(self._within(period))
            if name.kind == kind and first_ms < name.at_ms < period.end_ms
        ]
        self._read_all(names, form.decoded)
        return [(name.at_ms, self._read[name.name]) for name in names]

    def _within(self, period: Period) -> list[int]:
        """The days of what is known of a period. Raises StoreError if one is missing."""
        first_ms, end_ms = max(period.start_ms, self._known.start_ms), min(period.end_ms, self._known.end_ms)
        days = list(range(first_ms // DAY_MS * DAY_MS, end_ms, DAY_MS))
        missing = [day_name(day) for day in days if day not in self._lists]
        if missing:
            raise self._error(
                f"it has no history of {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}",
                "ask for a period without these days, or ask the collector, which has all",
            )
        return days

    def _named(self, days: Iterable[int]) -> list[ChunkName]:
        """The chunks of these days, day by day."""
        days = list(days)
        self._read_lists(days)
        return [name for day in days for name in self._read[self._lists[day].name].chunks]

    def _read_lists(self, days: Iterable[int]) -> None:
        self._read_all([self._lists[day] for day in days], lambda blob: chunks.decoded(blob, Day))

    def _read_all(self, names: Iterable[ChunkName], decode: Callable[[bytes], Any]) -> None:
        """Read those of these chunks that were not read yet."""
        missing = {name.name: name for name in names if name.name not in self._read}
        if sum(name.parts for name in missing.values()) > _MOST_PARTS:
            raise self._error("the records of this period are more than a command reads", "ask for a shorter period")
        left = list(missing.values())
        while left:
            some = _portion(left, self._parts_at_once)
            try:
                texts = self._texts(some)
            except AskedTooMuch as error:
                if len(some) == 1:
                    raise self._error(
                        str(error), f"let its limits permit {some[0].parts} series of 2 KB, if that is why"
                    ) from error
                self._parts_at_once = sum(name.parts for name in some) // 2
                continue
            del left[: len(some)]
            for name in some:
                try:
                    self._read[name.name] = decode(chunks.content(name.name, texts.pop(name.name)))
                except ChunkError as error:
                    raise self._error(f"chunk {name.name} of its history cannot be read: {error}", _SCRAPE) from error

    def _texts(self, names: Collection[ChunkName]) -> dict[str, str]:
        """The texts of these chunks; of one that is not there "" or a part. Raises AskedTooMuch."""
        parts: dict[str, dict[int, str]] = {name.name: {} for name in names}
        first_ms = min(self._lists)
        wanted = "|".join(parts)
        for one in self._ask(self._expression(chunks.PART, f'chunk=~"{wanted}"', self._now_ms - first_ms), _PARTS):
            of = parts.get(one.metric.chunk)
            if of is not None and one.metric.part.isdecimal():
                of[int(one.metric.part)] = one.metric.data
        return {name: "".join(text for _, text in sorted(of.items())) for name, of in parts.items()}

    def _list_days(self) -> dict[int, ChunkName]:
        """The chunk with the list of each day."""
        found = self._day_values(_LOOK_BACK_DAYS * DAY_MS, 0)
        if not found:
            raise self._error(
                f"it has no series {chunks.DAY}" + (f" with {self._matchers}" if self._matchers else ""),
                "let it scrape /history of a collector that runs with --publish-every",
            )
        self._check_sources({one.metric for one in found})
        latest: dict[int, tuple[int, ChunkName]] = {}
        for one in found:
            labels, until_ms = one.metric, _whole(one.value[1])
            day_ms = _day_ms(labels.day)
            if day_ms is None or until_ms is None or not chunks.is_name(labels.chunk) or not labels.parts.isdecimal():
                raise self._error(f"a series {chunks.DAY} is not that of a collector", _FOREIGN)
            named = until_ms, ChunkName("day", day_ms, labels.chunk, int(labels.parts))
            latest[day_ms] = max(latest.get(day_ms, named), named, key=lambda one: one[0])
            self._now_ms = max(self._now_ms, round(one.value[0] * 1000))
        self._until_ms = max(until_ms for until_ms, _ in latest.values())
        return {day_ms: name for day_ms, (_, name) in sorted(latest.items())}

    def _day_values(self, length_ms: int, offset_ms: int) -> tuple[_DayValue, ...]:
        """The series of days of so long, up to so long ago. Raises StoreError."""
        expression = self._expression(chunks.DAY, "", length_ms, offset_ms)
        try:
            return self._ask(f"topk by (store, day, job, namespace) (1, {expression})", _DAYS)
        except AskedTooMuch as error:
            half_ms = length_ms // 2
            if half_ms < DAY_MS:
                raise self._error(str(error), "let its limits permit the series of one day, if that is why") from error
            return self._day_values(half_ms, offset_ms) + self._day_values(length_ms - half_ms, offset_ms + half_ms)

    def _check_sources(self, found: Collection[_DaySeries]) -> None:
        """Raises StoreError if they are of several histories, or nobody has chosen between several scrape jobs."""
        stores = {one.store for one in found}
        if len(stores) > 1:
            named = ", ".join(f'store="{one}"' for one in sorted(stores)[:5])
            raise self._error(f"it has {len(stores)} histories", f"choose one with --prometheus-match: {named}")
        jobs = {(one.job, one.namespace) for one in found}
        if len(jobs) > 1 and not self._matchers:
            named = ", ".join(f'job="{job}",namespace="{namespace}"' for job, namespace in sorted(jobs)[:5])
            raise self._error(
                f"{len(jobs)} scrape jobs have the history",
                f"name that of the collector with --prometheus-match: {named}",
            )

    def _knowledge(self) -> Period:
        """What is known: from the first record, or from the first day that is there."""
        self._read_lists([max(self._lists)])
        last: Day = self._read[self._lists[max(self._lists)].name]
        return Period(min(max(min(self._lists), last.first_ms), self._until_ms), self._until_ms)

    def _expression(self, metric: str, matcher: str, length_ms: int, offset_ms: int = 0) -> str:
        matchers = ",".join(filter(None, (matcher, self._matchers)))
        offset = f" offset {offset_ms // 1000}s" if offset_ms else ""
        return f"last_over_time({metric}{{{matchers}}}[{length_ms // 1000 + 3600}s]{offset})"

    def _ask(self, expression: str, decoder: Decoder[PrometheusAnswer[S]]) -> tuple[S, ...]:
        """Raises StoreError, AskedTooMuch."""

        async def asked() -> tuple[S, ...]:
            async with PrometheusApi(self._access, timeout_s=self._timeout_s) as api:
                return await api.query(expression, api.headers(), decoder, whole=True)

        try:
            return asyncio.run(asked())
        except AskedTooMuch:
            raise
        except PrometheusError as error:
            raise self._error(str(error), "see whether it runs, and whether you may ask it") from error

    def _error(self, rule: str, fix: str) -> StoreError:
        return StoreError(f"Prometheus at {self._access.shown}", rule, fix)


def _portion(names: Iterable[ChunkName], most_parts: int) -> list[ChunkName]:
    """The first of them, as many as one question has: one at least."""
    some: list[ChunkName] = []
    parts = 0
    for name in names:
        if some and (len(some) >= _NAMES_AT_ONCE or parts + name.parts > most_parts):
            break
        some.append(name)
        parts += name.parts
    return some


def _whole(text: str) -> int | None:
    """A whole number, as Prometheus writes a float64."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if 0 <= value < _LARGEST and value.is_integer() else None


def _day_ms(text: str) -> int | None:
    """The start of a day (`2026-11-05`)."""
    try:
        return round(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None


def _was_there(pod: PodRecord, period: Period) -> bool:
    return pod.submitted_ms < period.end_ms and (not pod.ended_ms or pod.ended_ms > period.start_ms)


def _touches(one: GpuSpan | GpuHold, period: Period) -> bool:
    return one.start_ms < period.end_ms and (not one.end_ms or one.end_ms > period.start_ms)
