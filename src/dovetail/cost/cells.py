# SPDX-License-Identifier: Apache-2.0
"""The time of all GPUs of a period with prices and use, as cells of exact integers.

Rules
- A cell is of one segment of the period (a day, if days are asked for), one place (`Where`) and one holder, or of
  nobody. Each has the time of GPUs, and the money for it. Cells of any grouping add up to the same.
- The start-up of a pod is from its bind until its containers have started; without a start, until it ended.
- What a pod used is divided over what it held in the segment: of its GPU, if cells are by GPU. What was measured is at
  most what was held. Used, idle and not measured add up to allocated.
- An hour of use, or a day where hours are not kept any more, counts for the segment in which it begins.
- Only what is known counts: the period ends where the history does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from msgspec import Struct

from dovetail.cost.price_rules import PriceBook, Priced, PriceRule, Unpriced
from dovetail.history.ledger import GpuTime, State, Unknown, divide
from dovetail.history.records import Gap, GpuSpan, Period, PodRecord
from dovetail.history.store import HistoryReader

USE_OF_WHOLE = 1000
"""The use of a GPU that is used wholly, per millisecond."""
NO_PRICE = Unpriced("prices were not asked for", "")
_NEVER_MS = 1 << 62


class Where(Struct, frozen=True):
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


class Cell(Struct):
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
    those that held GPUs. `unknown_ms` is for how long holds were of GPUs that were not there; `assumed_time` the
    allocated time where it is assumed which GPU was held; `unheld_ms` for how long use was measured of GPUs that the
    pod did not hold, and `unheld_use` that use (see `UseHour`)."""

    asked: Period
    period: Period
    segments: tuple[Period, ...]
    cells: tuple[Cell, ...]
    pods: dict[str, PodRecord]
    gaps: tuple[Gap, ...]
    known: Period
    unknown_ms: int = 0
    assumed_time: int = 0
    unheld_ms: int = 0
    unheld_use: int = 0


def gpu_times(
    reader: HistoryReader, asked: Period, book: PriceBook | None, segments: Sequence[Period] = (), by_gpu: bool = False
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
    made.fill(divide(reader.spans(period), holds, period, made.cuts))
    made.measure(reader)
    return GpuTimes(
        asked, period, parts, tuple(made.cells.values()), pods, tuple(reader.gaps(period)), known,
        made.unknown_ms, made.assumed_time, made.unheld_ms, made.unheld_use,
    )  # fmt: skip


class _Cells:
    def __init__(
        self, segments: Sequence[Period], pods: dict[str, PodRecord], book: PriceBook | None, by_gpu: bool
    ) -> None:
        self.cells: dict[tuple[int, str, str], Cell] = {}
        self.cuts = sorted({part.start_ms for part in segments} | set(book.changes() if book is not None else ()))
        self.unknown_ms = self.assumed_time = self.unheld_ms = self.unheld_use = 0
        self._segments, self._book, self._by_gpu = segments, book, by_gpu
        self._starts = [part.start_ms for part in segments]
        self._starting = {uid: _start_up(pod) for uid, pod in pods.items() if pod.bound_ms}
        self._wheres: dict[Where, int] = {}

    def fill(self, times: Iterable[GpuTime | Unknown]) -> None:
        """Add the times to their cells. They come by GPU."""
        cells, cuts, starting = self.cells, self.cuts, self._starting
        span: GpuSpan | None = None
        interval = -1
        for one in times:
            start_ms, end_ms = one.start_ms, one.end_ms
            if isinstance(one, Unknown):
                self.unknown_ms += end_ms - start_ms
                continue
            at = bisect_right(cuts, start_ms)
            if one.span is not span or at != interval:
                span, interval = one.span, at
                where, number, micro = self._place(span, start_ms)
            hold = one.hold
            uid = hold.pod_uid if hold is not None else ""
            key = (number, one.state, uid)
            cell = cells.get(key)
            if cell is None:
                cell = cells[key] = Cell(where, one.state, uid)
            time = one.milli * (end_ms - start_ms)
            cell.time += time
            cell.money += time * micro
            if hold is None:
                continue
            cell.held_ms += end_ms - start_ms
            if not hold.named:
                self.assumed_time += time
            begin = starting.get(uid)
            if begin is not None and start_ms < begin[1] and end_ms > begin[0]:
                part = one.milli * (min(end_ms, begin[1]) - max(start_ms, begin[0]))
                cell.start_up_time += part
                cell.start_up += part * micro

    def _place(self, span: GpuSpan, at_ms: int) -> tuple[Where, int, int]:
        """The place of a GPU at a time, its number, and the price there, 0 without one. Raises CurrencyError."""
        price = self._book.price(span, at_ms) if self._book is not None else NO_PRICE
        where = Where(
            bisect_right(self._starts, at_ms) - 1, span.node, span.model, span.instance_type, span.region, span.zone,
            span.spot, span.gpu if self._by_gpu else "",
            price.rule if isinstance(price, Priced) else None, price if isinstance(price, Unpriced) else None,
        )  # fmt: skip
        return where, self._wheres.setdefault(where, len(self._wheres)), price.micro if isinstance(price, Priced) else 0

    def measure(self, reader: HistoryReader) -> None:
        """Divide what was used over the cells. Raises StoreError."""
        held: dict[tuple[int, str, str], int] = {}
        for cell in self.cells.values():
            if cell.pod_uid:
                key = (cell.where.segment, cell.where.gpu, cell.pod_uid)
                held[key] = held.get(key, 0) + cell.held_ms
        sums: dict[tuple[int, str, str], tuple[int, int]] = {}
        for segment, part in enumerate(self._segments):
            for hour in reader.use(part):
                key = (segment, hour.gpu if self._by_gpu else "", hour.pod_uid)
                if key not in held:
                    self.unheld_ms += hour.measured_ms
                    self.unheld_use += hour.use
                    continue
                measured_ms, use = sums.get(key, (0, 0))
                sums[key] = measured_ms + hour.measured_ms, use + hour.use
        for cell in self.cells.values():
            found = sums.get((cell.where.segment, cell.where.gpu, cell.pod_uid)) if cell.pod_uid else None
            if found is None:
                continue
            held_ms = held[cell.where.segment, cell.where.gpu, cell.pod_uid]
            measured_ms = min(found[0], held_ms)
            use, whole = min(found[1], measured_ms * USE_OF_WHOLE), held_ms * USE_OF_WHOLE
            cell.used_time, cell.used = cell.time * use // whole, cell.money * use // whole
            cell.idle_time = cell.time * measured_ms // held_ms - cell.used_time
            cell.idle = cell.money * measured_ms // held_ms - cell.used


def _start_up(pod: PodRecord) -> tuple[int, int]:
    """From when to when the pod started up."""
    return pod.bound_ms, pod.started_ms or pod.ended_ms or _NEVER_MS
