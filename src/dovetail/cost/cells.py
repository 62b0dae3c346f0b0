# SPDX-License-Identifier: Apache-2.0
"""The time of all GPUs of a period with prices and use, as cells of exact integers.

Rules
- A cell is of one segment of the period (a day, if days are asked for), one place (`Where`) and one holder, or of
  nobody. Each has the time of GPUs, and the money for it. Cells of any grouping add up to the same.
- The start-up of a pod is from its bind until its containers have started; without a start, until it ended.
- What a pod used is divided over what it held in the segment, in proportion to time: of each GPU by itself if cells
  are by GPU, else of all its GPUs together. What was measured is at
  most what was held. Used, idle and not measured add up to allocated.
- An hour of use, or a day where hours are not kept any more, counts for the segment in which it begins.
- Only what is known counts: the period ends where the history does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from dovetail.cost.price_rules import PriceBook, Priced, PriceRule, Unpriced
from dovetail.history.ledger import GpuTime, State, Unknown, divide
from dovetail.history.records import Gap, GpuSpan, Period, PodRecord
from dovetail.history.store import HistoryReader

USE_OF_WHOLE = 1000
"""The use of a GPU that is used wholly, per millisecond."""
NO_PRICE = Unpriced("prices were not asked for", "")
_NEVER_MS = 1 << 62


class UsedByPod(Protocol):
    """What a pod used together."""

    @property
    def pod_uid(self) -> str: ...

    @property
    def measured_ms(self) -> int: ...

    @property
    def use(self) -> int: ...


class UseReader(HistoryReader, Protocol):
    """A history that also adds up use. Methods raise StoreError."""

    def use_by_pod(self, period: Period) -> Iterator[UsedByPod]:
        """The use of each pod in a period, all hours and GPUs together."""


class Where(Struct, frozen=True, gc=False):
    """The place and the price of GPU time. `gpu` is "" if cells are not by GPU; `rule` is None where there is no price,
    and `unpriced` why."""

    segment: int
    node: str
    model: str
    instance_type: str
    region: str
    zone: str
    spot: bool
    gpu: str = ""
    rule: PriceRule | None = None
    unpriced: Unpriced | None = None


class Cell(Struct, gc=False):
    """GPU time (thousandths times milliseconds), and the money for it (see `rounding`). `start_up` is a part of
    `money`; `used`, `idle` and `unmeasured` are all of it where the state is `allocated`. The same of time ends in
    `_time`. `held_ms` is for how long GPUs were held, shares as long as whole ones."""

    where: Where
    state: State
    pod_uid: str = ""
    time: int = 0
    money: int = 0
    start_up_time: int = 0
    start_up: int = 0
    held_ms: int = 0
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


class GpuTimes(Struct, frozen=True):
    """`asked` is the period that was asked for, `period` what of it is known, in `segments`. `pods` are the records of
    those that were there. `unknown_ms` is for how long holds were of GPUs that were not there, `assumed_time` the
    allocated time where it is assumed which GPU was held."""

    asked: Period
    period: Period
    segments: tuple[Period, ...]
    cells: tuple[Cell, ...]
    pods: dict[str, PodRecord]
    gaps: tuple[Gap, ...]
    known: Period
    unknown_ms: int = 0
    assumed_time: int = 0


def gpu_times(
    reader: UseReader, asked: Period, book: PriceBook | None, segments: Sequence[Period] = (), by_gpu: bool = False
) -> GpuTimes:
    """The cells of a period, with prices of the book, and for each of its segments. Without segments it is one. Raises
    StoreError and CurrencyError."""
    known = reader.known()
    period = Period(max(known.start_ms, asked.start_ms), min(known.end_ms, asked.end_ms))
    if not period.ms:
        return GpuTimes(asked, Period(asked.start_ms, asked.start_ms), (), (), {}, (), known)
    parts = tuple(part for one in segments or [period] if (part := period.clipped(one.start_ms, one.end_ms)).ms)
    pods = {pod.uid: pod for pod in reader.pods(period)}
    holds = list(reader.holds(period))
    pods |= {pod.uid: pod for pod in reader.pods_of({hold.pod_uid for hold in holds} - pods.keys())}
    made = _Cells(parts, pods, book, by_gpu)
    made.fill(divide(list(reader.spans(period)), holds, period, made.cuts))
    made.measure(reader)
    return GpuTimes(
        asked, period, parts, tuple(made.cells), pods, tuple(reader.gaps(period)), known,
        made.unknown_ms, made.assumed_time,
    )  # fmt: skip


class _Cells:
    def __init__(
        self, segments: Sequence[Period], pods: dict[str, PodRecord], book: PriceBook | None, by_gpu: bool
    ) -> None:
        self.cells: list[Cell] = []
        self.cuts = sorted({part.start_ms for part in segments} | set(book.changes() if book is not None else ()))
        self.unknown_ms = self.assumed_time = 0
        self._segments, self._book, self._by_gpu = segments, book, by_gpu
        self._starts = [part.start_ms for part in segments]
        self._starting = {uid: _start_up(pod) for uid, pod in pods.items() if pod.bound_ms}
        self._at: dict[Where, tuple[dict[str, Cell], dict[State, Cell]]] = {}

    def fill(self, times: Iterable[GpuTime | Unknown]) -> None:
        """Add the times to their cells. They come by GPU."""
        cuts, starting = self.cuts, self._starting
        span: GpuSpan | None = None
        next_ms = micro = 0
        for one in times:
            if isinstance(one, Unknown):
                self.unknown_ms += one.end_ms - one.start_ms
                continue
            start_ms, end_ms = one.start_ms, one.end_ms
            if one.span is not span or start_ms >= next_ms:
                span = one.span
                at = bisect_right(cuts, start_ms)
                next_ms = cuts[at] if at < len(cuts) else _NEVER_MS
                where, micro = self._place(span, start_ms)
                held, free = self._at.setdefault(where, ({}, {}))
            hold, milli = one.hold, one.milli
            time = milli * (end_ms - start_ms)
            if hold is None:
                cell = free.get(one.state)
                if cell is None:
                    cell = free[one.state] = Cell(where, one.state)
                    self.cells.append(cell)
                cell.time += time
                cell.money += time * micro
                continue
            uid = hold.pod_uid
            cell = held.get(uid)
            if cell is None:
                cell = held[uid] = Cell(where, "allocated", uid)
                self.cells.append(cell)
            cell.time += time
            cell.money += time * micro
            cell.held_ms += end_ms - start_ms
            if not hold.named:
                self.assumed_time += time
            begin = starting.get(uid)
            if begin is not None and start_ms < begin[1] and end_ms > begin[0]:
                first_ms = start_ms if start_ms > begin[0] else begin[0]
                part = milli * ((end_ms if end_ms < begin[1] else begin[1]) - first_ms)
                cell.start_up_time += part
                cell.start_up += part * micro

    def _place(self, span: GpuSpan, at_ms: int) -> tuple[Where, int]:
        """The place of a GPU at a time, and the price there, 0 without one. Raises CurrencyError."""
        price = self._book.price(span, at_ms) if self._book is not None else NO_PRICE
        where = Where(
            bisect_right(self._starts, at_ms) - 1, span.node, span.model, span.instance_type, span.region, span.zone,
            span.spot, span.gpu if self._by_gpu else "",
            price.rule if isinstance(price, Priced) else None, price if isinstance(price, Unpriced) else None,
        )  # fmt: skip
        return where, price.micro if isinstance(price, Priced) else 0

    def measure(self, reader: UseReader) -> None:
        """Divide what was used over the cells. Raises StoreError."""
        cells_of: dict[tuple[int, str], dict[str, list[Cell]]] = {}
        for where, (held, _) in self._at.items():
            found = cells_of.setdefault((where.segment, where.gpu), {})
            for uid, cell in held.items():
                found.setdefault(uid, []).append(cell)
        for segment, part in enumerate(self._segments):
            if not self._by_gpu:
                here = cells_of.get((segment, ""), {})
                for one in reader.use_by_pod(part):
                    if (mine := here.get(one.pod_uid)) is not None:
                        _divide_use(mine, one.measured_ms, one.use)
                continue
            sums: dict[tuple[str, str], tuple[int, int]] = {}
            for hour in reader.use(part):
                measured_ms, use = sums.get((hour.gpu, hour.pod_uid), (0, 0))
                sums[hour.gpu, hour.pod_uid] = measured_ms + hour.measured_ms, use + hour.use
            for (gpu, uid), (measured_ms, use) in sums.items():
                if (mine := cells_of.get((segment, gpu), {}).get(uid)) is not None:
                    _divide_use(mine, measured_ms, use)


def _divide_use(cells: Sequence[Cell], measured_ms: int, use: int) -> None:
    """Divide the use of a pod over what it held."""
    held_ms = sum([cell.held_ms for cell in cells]) if len(cells) > 1 else cells[0].held_ms
    measured_ms = min(measured_ms, held_ms)
    use, whole = min(use, measured_ms * USE_OF_WHOLE), held_ms * USE_OF_WHOLE
    for cell in cells:
        time, money = cell.time, cell.money
        cell.used_time = used_time = time * use // whole
        cell.used = used = money * use // whole
        cell.idle_time = time * measured_ms // held_ms - used_time
        cell.idle = money * measured_ms // held_ms - used


def _start_up(pod: PodRecord) -> tuple[int, int]:
    """From when to when the pod started up."""
    return pod.bound_ms, pod.started_ms or pod.ended_ms or _NEVER_MS
