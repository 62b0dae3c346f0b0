# SPDX-License-Identifier: Apache-2.0
"""The time of all GPUs of a period with prices and use, as cells of exact integers.

Rules
- A cell is of one segment of the period (a day, if days are asked for), one place (`Where`) and one holder, or of
  nobody. Each has the time of GPUs, and the money for it: time x price. Cells of any grouping add up to the same.
- What was start-up, used and idle of the time is as `history.gpu_use` divides it, UTC day by UTC day. So a period has
  exactly what its UTC days have together.
- Whole UTC days come from the sums that the store keeps, where it has them, for groupings by one of `SUMMED_BY` without
  segments, and if no price begins in the middle of the day and none names a node. All else comes from the records.
  The answers are equal.
- For other groupings, but by GPU, they come from the sums by pod and node: `PodGrouping` has the groups. As there can
  be as many as pods they are in columns, of which cells are made where they are needed (`group_sums`).
- Only what is known counts: the period ends where the history does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

from msgspec import Struct

from dovetail.cost.bill import BillLine, bill
from dovetail.cost.pod_groups import GroupColumns, PodGrouping, PodGroups
from dovetail.cost.price_rules import PriceBook, Priced, PriceRule
from dovetail.history.day_sums import DaySums, HeldSum, PodOwner
from dovetail.history.gpu_use import NEVER_MS, UseOfPods, day_parts
from dovetail.history.ledger import GpuTime, State, Unknown, divide
from dovetail.history.records import Gap, GpuHold, GpuSpan, Period, PodRecord
from dovetail.history.store import HistoryReader

SUMMED_BY = ("team", "queue", "namespace", "user", "model")
"""The groupings that sums of days have all of."""
_R = TypeVar("_R", GpuSpan, GpuHold)
_Key: TypeAlias = "tuple[State, str, PodOwner | None]"


class Where(Struct, frozen=True, gc=False):
    """The place and the price of GPU time. `node` is "" in sums of days, `gpu` if cells are not by GPU; `rule` is None
    where there is no price."""

    segment: int
    node: str
    model: str
    instance_type: str
    region: str
    zone: str
    spot: bool
    gpu: str = ""
    rule: PriceRule | None = None


PricedPlace: TypeAlias = "tuple[Where, int]"
"""With the price of a GPU for an hour, in millionths of the currency; 0 without one."""


class Cell(Struct, gc=False):
    """GPU time (thousandths times milliseconds), and the money for it (see `rounding`), of a pod, or of all pods of an
    owner. `start_up` is a part of `money`; `used`, `idle` and `unmeasured` are all of it where the state is
    `allocated`. The same of time ends in `_time`."""

    where: Where
    state: State
    pod_uid: str = ""
    owner: PodOwner | None = None
    time: int = 0
    money: int = 0
    start_up_time: int = 0
    start_up: int = 0
    used_time: int = 0
    used: int = 0
    idle_time: int = 0
    idle: int = 0

    @property
    def unmeasured_time(self) -> int:
        return self.time - self.used_time - self.idle_time if self.state == "allocated" else 0

    @property
    def unmeasured(self) -> int:
        return self.money - self.used - self.idle if self.state == "allocated" else 0


class HeldPods(Struct, frozen=True):
    """The pods that are in cells of an owner, by model (None: those of which there is no record)."""

    owner: PodOwner | None
    pods: HeldSum


class GpuTimes(Struct, frozen=True):
    """`asked` is the period that was asked for, `period` what of it is known, in `segments`. `pods` are the records of
    those that have cells of their own, `held` the pods of cells of owners; `columns` are of whole days by group. `bill`
    is what the GPUs cost, whatever became of their time. `unknown_ms` is for how long holds were of GPUs that were not
    there, `assumed_time` the allocated time where it is assumed which GPU was held."""

    asked: Period
    period: Period
    segments: tuple[Period, ...]
    cells: tuple[Cell, ...]
    pods: dict[str, PodRecord]
    gaps: tuple[Gap, ...]
    known: Period
    held: tuple[HeldPods, ...] = ()
    columns: GroupColumns[PricedPlace] | None = None
    bill: tuple[BillLine, ...] = ()
    unknown_ms: int = 0
    assumed_time: int = 0


def gpu_times(
    reader: HistoryReader, asked: Period, book: PriceBook | None, segments: Sequence[Period] = (), by: str = "",
    pods: PodGrouping | None = None,
) -> GpuTimes:  # fmt: skip
    """The cells of a period, for a grouping `by`, with prices of the book, and for each of its segments. Without
    segments it is one. With `pods` whole days are in cells of these groups. Raises StoreError and CurrencyError."""
    known = reader.known()
    period = Period(max(known.start_ms, asked.start_ms), min(known.end_ms, asked.end_ms))
    if not period.ms:
        return GpuTimes(asked, Period(asked.start_ms, asked.start_ms), (), (), {}, (), known)
    parts = tuple(part for one in segments or [period] if (part := period.clipped(one.start_ms, one.end_ms)).ms)
    made = _Cells(parts, book, by == "gpu")
    at_ms = period.start_ms
    of_nodes = book is not None and book.names_nodes
    groups: PodGroups[PricedPlace] | None = None
    if not segments and by in SUMMED_BY and not of_nodes:
        for day in reader.day_sums(period):
            if made.uncut(day.period):
                made.add_records(reader, Period(at_ms, day.start_ms))
                made.add_sums(day)
                at_ms = day.period.end_ms
    elif not segments and pods is not None:
        for of_pods in reader.pod_days(period):
            if made.uncut(of_pods.period):
                made.add_records(reader, Period(at_ms, of_pods.start_ms))
                groups = groups or PodGroups(reader, period, pods, made.where, of_nodes)
                groups.add(of_pods)
                made.unknown_ms += of_pods.unknown_ms
                made.assumed_time += of_pods.assumed_time
                at_ms = of_pods.period.end_ms
    made.add_records(reader, Period(at_ms, period.end_ms))
    lines = bill(reader.spans(period), period, book) if book is not None else ()
    columns = groups.columns() if groups is not None else None
    return GpuTimes(
        asked, period, parts, tuple(made.cells), made.pods, tuple(reader.gaps(period)), known,
        tuple(made.held), columns, tuple(lines), made.unknown_ms, made.assumed_time,
    )  # fmt: skip


class _Cells:
    def __init__(self, segments: Sequence[Period], book: PriceBook | None, by_gpu: bool) -> None:
        self.cells: list[Cell] = []
        self.pods: dict[str, PodRecord] = {}
        self.held: list[HeldPods] = []
        self.unknown_ms = self.assumed_time = 0
        self._book, self._by_gpu = book, by_gpu
        self._starts = [part.start_ms for part in segments]
        self._changes = book.changes() if book is not None else []
        self._at: dict[Where, dict[_Key, Cell]] = {}
        """The cells of a place by state, pod and owner."""

    def uncut(self, day: Period) -> bool:
        """Whether no price begins in the middle of the day."""
        at = bisect_right(self._changes, day.start_ms)
        return at == len(self._changes) or self._changes[at] >= day.end_ms

    def add_sums(self, day: DaySums) -> None:
        """Raises CurrencyError."""
        self.unknown_ms += day.unknown_ms
        self.assumed_time += day.assumed_time
        places = [self.where(place.span(), day.start_ms) for place in day.places]
        for one in day.times:
            where, micro = places[one.place]
            key = one.state, "", day.owner(one.owner)
            cell = self._at.setdefault(where, {}).get(key) or self._new(where, key)
            cell.time += one.time
            cell.money += one.time * micro
            cell.start_up_time += one.start_up_time
            cell.start_up += one.start_up_time * micro
            cell.used_time += one.used_time
            cell.used += one.used_time * micro
            cell.idle_time += one.idle_time
            cell.idle += one.idle_time * micro
        self.held += (HeldPods(day.owner(one.owner), one) for one in day.held)

    def add_records(self, reader: HistoryReader, period: Period) -> None:
        """Raises StoreError and CurrencyError."""
        if not period.ms:
            return
        spans, holds = list(reader.spans(period)), list(reader.holds(period))
        self.pods |= {pod.uid: pod for pod in reader.pods_of({hold.pod_uid for hold in holds} - self.pods.keys())}
        parts = list(day_parts(period, self._starts))
        for part, there, held in zip(parts, _by_part(spans, parts), _by_part(holds, parts), strict=True):
            times = list(divide(there, held, part, self._changes))
            use = UseOfPods(self._measured(reader, part), self.pods, self._by_gpu)
            use.hold(times)
            self._add(times, use)

    def _measured(self, reader: HistoryReader, part: Period) -> dict[tuple[str, str], tuple[int, int]]:
        """Raises StoreError."""
        if not self._by_gpu:
            return {("", one.pod_uid): (one.measured_ms, one.use) for one in reader.use_by_pod(part)}
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for hour in reader.use(part):
            measured_ms, use = found.get((hour.gpu, hour.pod_uid), (0, 0))
            found[hour.gpu, hour.pod_uid] = measured_ms + hour.measured_ms, use + hour.use
        return found

    def _add(self, times: Iterable[GpuTime | Unknown], use: UseOfPods) -> None:
        """Of one part; they come by GPU. Raises CurrencyError."""
        changes = self._changes
        span: GpuSpan | None = None
        next_ms = 0
        for one in times:
            if isinstance(one, Unknown):
                self.unknown_ms += one.end_ms - one.start_ms
                continue
            start_ms = one.start_ms
            if one.span is not span or start_ms >= next_ms:
                span = one.span
                at = bisect_right(changes, start_ms)
                next_ms = changes[at] if at < len(changes) else NEVER_MS
                where, micro = self.where(span, start_ms)
                cells = self._at.setdefault(where, {})
            hold, amount = one.hold, one.milli * (one.end_ms - start_ms)
            key = one.state, hold.pod_uid if hold is not None else "", None
            cell = cells.get(key) or self._new(where, key)
            cell.time += amount
            cell.money += amount * micro
            if hold is None:
                continue
            start_up, used, idle = use.parts(one, hold)
            if start_up:
                cell.start_up_time += start_up
                cell.start_up += start_up * micro
            if used or idle:
                cell.used_time += used
                cell.used += used * micro
                cell.idle_time += idle
                cell.idle += idle * micro
            if not hold.named:
                self.assumed_time += amount

    def _new(self, where: Where, key: _Key) -> Cell:
        cell = self._at[where][key] = Cell(where, *key)
        self.cells.append(cell)
        return cell

    def where(self, span: GpuSpan, at_ms: int) -> PricedPlace:
        """The place of a GPU at a time, and the price there, 0 without one. Raises CurrencyError."""
        price = self._book.price(span, at_ms) if self._book is not None else None
        rule, micro = (price.rule, price.micro) if isinstance(price, Priced) else (None, 0)
        where = Where(
            bisect_right(self._starts, at_ms) - 1, span.node, span.model, span.instance_type, span.region, span.zone,
            span.spot, span.gpu if self._by_gpu else "", rule,
        )  # fmt: skip
        return where, micro


def _by_part(records: Iterable[_R], parts: Sequence[Period]) -> list[list[_R]]:
    """Of each part the records that touch it, in their order; all of them touch the whole."""
    if len(parts) == 1:
        return [list(records)]
    starts = [part.start_ms for part in parts]
    found: list[list[_R]] = [[] for _ in parts]
    for one in records:
        first = max(0, bisect_right(starts, one.start_ms) - 1)
        last = bisect_left(starts, one.end_ms) if one.end_ms else len(parts)
        for number in range(first, last):
            found[number].append(one)
    return found
