# SPDX-License-Identifier: Apache-2.0
"""The answer of `dovetail capacity`: which GPUs to rent, to buy or to give back, by kind of node.

Rules
- What can be rented or returned are whole nodes of a kind that the cluster has.
- Give back: as many nodes as remain when all that pods held, and waited for, is replayed on the fewest nodes on which
  it fits (`history.packing`). Not from means: a low mean reports nothing of the busiest hour. The CPUs and the memory
  that pods request count where the price of the nodes has how much a node has of them: `HOST_LOAD` of that, as the
  system and pods without GPUs need some.
- Rent or buy: as many nodes as would have been half full for `LEAST_USED_PPM` of the time, with the demand that there
  would be if nothing had to wait (`history.occupancy`), and only where jobs lacked GPUs. What waited beside free GPUs
  is no reason.
- GPUs that were stranded over the period (`history.stranded_time`) are shown with the price that they had then: those
  that no waiting pod could use, and apart those that nothing waited for and the typical pod could not use.
- There is no advice from less than `LEAST_MS` of history, nor where more than `MOST_GAP_PPM` of the period was not
  recorded.
- A saving has the lowest price of the kind's nodes at the end of the period, a cost the highest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import tzinfo
from typing import Literal

from msgspec import Struct

from dovetail.cost.calendar import days
from dovetail.cost.node_prices import HOURS_30D, NodePrice, node_price
from dovetail.cost.price_rules import PriceBook, Priced, Unpriced
from dovetail.cost.rounding import nearest
from dovetail.history.occupancy import KindUse, NodeKindKey, OccupiedTime, occupancy, quantile
from dovetail.history.packing import NodeSize, nodes_needed
from dovetail.history.records import DAY_MS, HOUR_MS, Period
from dovetail.history.store import HistoryReader
from dovetail.history.stranded_time import StrandedCause, stranded

LEAST_MS = 7 * DAY_MS
MOST_GAP_PPM = 100_000
LEAST_USED_PPM = 250_000
HOST_LOAD = 900
"""Thousandths."""
_P95_PPM = 950_000
_PPM = 10**6
_S = 1000
CapacityVerdict = Literal["give back", "rent or buy", "keep", "not enough data"]


class StrandedCost(Struct, frozen=True):
    """GPUs of a kind that were free and of no use: to any pod that waited (`waited`), or, while none did, to the
    typical pod. For how many GPU-seconds, by cause, and what they cost in millionths of the currency; None where one of
    them had no price."""

    waited: bool
    cause: StrandedCause
    gpu_s: int
    cost_micro: int | None


class CapacityAdvice(Struct, frozen=True):
    """One kind of node, `node_gpus` GPUs of a `model` each, of which there are `nodes` with `gpus` at the end. Of the
    period: how many GPUs were held at once, on average (thousandths), for 95 % of the time, and at most; how many were
    free at each moment (`least_free_gpus`), and free or idle in each hour (`least_unused_gpus`). `needed_nodes` are
    enough for all of it, None where the replay shows of no number that it is; `node_cpu_milli` and `node_memory_mib` of
    each counted, 0 where they are not known. Jobs waited for `waited_gpu_s`, in
    `waited_s` of the period for up to `most_waited_gpus`, and lacked `lacked_gpu_s` on so many days.

    `change_nodes` is the advice, below 0 to give back, and the amounts what it costs, below 0 what it saves, in
    millionths of the currency; None without a price, or without a change: then `why`, and how to `fix` that.
    `stranded` has those for which pods waited first; `typical_gpus` are the GPUs of the typical pod, 0 where none held
    any.
    `pays_after_months` is when buying is cheaper than renting, None where the price to buy is not known."""

    model: str
    node_gpus: int
    nodes: int
    gpus: int
    mean_gpus_milli: int
    p95_gpus: int
    peak_gpus: int
    least_free_gpus: int
    least_unused_gpus: int
    needed_nodes: int | None
    node_cpu_milli: int
    node_memory_mib: int
    waited_gpu_s: int
    waited_s: int
    most_waited_gpus: int
    lacked_gpu_s: int
    lacked_days: int
    days: int
    verdict: CapacityVerdict
    change_nodes: int
    per_hour_micro: int | None
    per_30d_micro: int | None
    price_source: str
    price_date: str
    why: str
    fix: str
    evidence: str
    risk: str
    wrong_if: str
    pays_after_months: int | None = None
    typical_gpus: int = 0
    stranded: tuple[StrandedCost, ...] = ()


class CapacityAnswer(Struct, frozen=True):
    """The answer: `asked` is the period that was asked for, the other one what of it is known, with gaps of `gap_ms`.
    Jobs that never started waited for `unknown_gpu_s` of which it is not known for which model."""

    asked_start_ms: int
    asked_end_ms: int
    start_ms: int
    end_ms: int
    gap_ms: int
    currency: str
    unknown_gpu_s: int
    kinds: tuple[CapacityAdvice, ...]


def capacity(reader: HistoryReader, asked: Period, zone: tzinfo, book: PriceBook) -> CapacityAnswer:
    """Raises StoreError and CurrencyError."""
    known = reader.known()
    period = Period(max(known.start_ms, asked.start_ms), min(known.end_ms, asked.end_ms))
    if not period.ms:
        return CapacityAnswer(asked.start_ms, asked.end_ms, asked.start_ms, asked.start_ms, 0, book.currency, 0, ())
    gap_ms = sum(period.clipped(gap.start_ms, gap.end_ms).ms for gap in reader.gaps(period))
    missing = ""
    if period.ms < LEAST_MS:
        missing = f"the history has {period.ms / DAY_MS:.1f} days of the period, and advice needs {LEAST_MS // DAY_MS}"
    elif gap_ms * _PPM > MOST_GAP_PPM * period.ms:
        missing = f"nothing was recorded for {100 * gap_ms // period.ms} % of the period"
    found = occupancy(reader, period)
    named = [part for _, part in days(period, zone)]
    kinds = [_advice(key, use, named, missing, book, period) for key, use in found.kinds.items() if use.node_gpus]
    kinds.sort(key=lambda one: (-one.gpus, one.model, one.node_gpus))
    return CapacityAnswer(
        asked.start_ms, asked.end_ms, period.start_ms, period.end_ms, gap_ms, book.currency,
        found.unknown_wait // _S, tuple(kinds),
    )  # fmt: skip


def _advice(
    key: NodeKindKey, use: KindUse, named: Iterable[Period], missing: str, book: PriceBook, period: Period
) -> CapacityAdvice:
    """Raises CurrencyError."""
    model, node_gpus = key
    moments = use.moments
    nodes, gpus = len({span.node for span in use.spans}), len(use.spans)
    held = sum(one.held * one.ms for one in moments)
    peak = max((one.held for one in moments), default=0)
    waited = sum(one.wanted * one.ms for one in moments)
    lacked = sum(one.lacked * one.ms for one in moments)
    parts = list(named)
    lacked_days = sum(any(day.clipped(one.start_ms, one.end_ms).ms for one in moments if one.lacked) for day in parts)
    size = _size(use, node_gpus, book, period)
    needed = nodes_needed(use.pieces, size, nodes)
    verdict, change = _verdict(nodes, needed, lacked, moments, node_gpus, missing)
    price = _price(use, book, period, cheapest=change < 0)
    hour = month = None
    if change and isinstance(price, NodePrice):
        hour = change * price.micro
        month = hour * HOURS_30D
    unpriced = price if change and isinstance(price, Unpriced) else Unpriced("", "")
    source, date = (price.source, price.date) if hour is not None and isinstance(price, NodePrice) else ("", "")
    text = _Text(nodes, gpus, size.counts, peak, needed, waited, lacked, lacked_days, len(parts), missing)
    return CapacityAdvice(
        model, node_gpus, nodes, gpus, nearest(1000 * held, period.ms),
        quantile(((one.held, one.ms) for one in moments), _P95_PPM), peak, max(0, gpus - peak),
        max(0, gpus - max(use.used_by_hour.values(), default=0)), needed, size.cpu_milli,
        size.memory_mib, waited // _S,
        sum(one.ms for one in moments if one.wanted) // _S, max((one.wanted for one in moments), default=0),
        lacked // _S, lacked_days, len(parts), verdict, change, hour, month, source, date, unpriced.why, unpriced.fix,
        text.evidence(verdict), _RISKS[verdict].format(counted=text.counted), _WRONG_IF[verdict],
        typical_gpus=use.typical.gpus if use.typical is not None else 0,
        stranded=tuple(_stranded(use, size, period, book)),
    )  # fmt: skip


def _verdict(
    nodes: int,
    needed: int | None,
    lacked: int,
    moments: Iterable[OccupiedTime],
    node_gpus: int,
    missing: str,
) -> tuple[CapacityVerdict, int]:
    if missing:
        return "not enough data", 0
    if lacked:
        # For more than this part of the time at least so many more GPUs would have been held.
        often = quantile(((one.beyond, one.ms) for one in moments), _PPM - LEAST_USED_PPM)
        more = (often + node_gpus - (node_gpus + 1) // 2) // node_gpus
        return ("rent or buy", more) if more else ("keep", 0)
    if needed is not None and needed < nodes:
        return "give back", needed - nodes
    return "keep", 0


def _stranded(use: KindUse, size: NodeSize, period: Period, book: PriceBook) -> Iterator[StrandedCost]:
    """Raises CurrencyError."""
    sums: dict[tuple[bool, StrandedCause], tuple[int, int, bool]] = {}
    for one in stranded(use, size, period, book.changes()):
        gpu_ms, money, priced = sums.get((one.waited, one.cause), (0, 0, True))
        price = book.price(one.span, one.start_ms)
        micro = price.micro if isinstance(price, Priced) else 0
        known = priced and isinstance(price, Priced)
        sums[one.waited, one.cause] = gpu_ms + one.gpu_ms, money + one.gpu_ms * micro, known
    for (waited, cause), (gpu_ms, money, priced) in sorted(sums.items(), key=lambda one: (not one[0][0], -one[1][0])):
        yield StrandedCost(waited, cause, gpu_ms // _S, nearest(money, HOUR_MS) if priced else None)


def _price(use: KindUse, book: PriceBook, period: Period, *, cheapest: bool) -> NodePrice | Unpriced:
    """The price of a node of the kind at the end of the period. Raises CurrencyError."""
    found: dict[NodePrice | Unpriced, None] = {}
    for span in {span.node: span for span in use.spans}.values():
        found[node_price(span, book, period.end_ms)] = None
    priced = sorted((one for one in found if isinstance(one, NodePrice)), key=lambda one: one.micro)
    if priced:
        return priced[0 if cheapest else -1]
    return next(iter(found), Unpriced("no node of the kind is there any more", ""))


def _size(use: KindUse, node_gpus: int, book: PriceBook, period: Period) -> NodeSize:
    """What a node has for pods: the least of those that are there at the end. Raises CurrencyError."""
    found = [
        (price.rule.cpu_milli, price.rule.memory_mib) if isinstance(price, Priced) else (0, 0)
        for span in {span.node: span for span in use.spans}.values()
        for price in [book.price(span, period.end_ms)]
    ]
    if not found or not all(cpu_milli and memory_mib for cpu_milli, memory_mib in found):
        return NodeSize(node_gpus)
    cpus, memories = zip(*found, strict=True)
    return NodeSize(node_gpus, min(cpus) * HOST_LOAD // 1000, min(memories) * HOST_LOAD // 1000)


class _Text(Struct, frozen=True):
    """The facts of which the evidence is made."""

    nodes: int
    gpus: int
    hosts: bool
    peak: int
    needed: int | None
    waited: int
    lacked: int
    lacked_days: int
    days: int
    missing: str

    @property
    def counted(self) -> str:
        """What the replay counts, beside GPUs."""
        return "requests of CPUs and memory" if self.hosts else "no CPUs and no memory, as the nodes' are not known"

    def evidence(self, verdict: CapacityVerdict) -> str:
        held = f"at most {self.peak} of {self.gpus} GPUs were held at once"
        beside = "" if self.lacked else ", beside enough that were free"
        waited = f"jobs waited {_hours(self.waited)}{beside}" if self.waited else "no job waited for them"
        match verdict:
            case "not enough data":
                return self.missing
            case "give back":
                hosts = " with the CPUs and the memory that pods request" if self.hosts else ""
                return f"{held}; {waited}; replayed{hosts}, all of it fits on {self.needed} of {self.nodes} nodes"
            case "rent or buy":
                lacked = f"lacked {_hours(self.lacked)} beyond what was free, on {self.lacked_days} of {self.days} days"
                part = f"at least half full for {LEAST_USED_PPM * 100 // _PPM} % of the time"
                return f"{waited}, and {lacked}; had nothing to wait, so many more nodes would have been {part}"
        if self.lacked:
            rarely = f"too seldom to fill half a node for {LEAST_USED_PPM * 100 // _PPM} % of the time"
            return f"{waited}, and lacked {_hours(self.lacked)}: {rarely}"
        if self.needed is None:
            return f"{held}; {waited}; replayed with the waits, it needs more nodes than there are"
        return f"{held}; {waited}; replayed, it needs as many nodes as there are"


def _hours(gpu_ms: int) -> str:
    return f"{nearest(gpu_ms, 3_600_000):,} GPU-hours"


_RISKS: Mapping[CapacityVerdict, str] = {
    "give back": "no node is left to stand in for one that fails; beside GPUs the replay counts {counted}; no NVLink, "
    "no racks of gangs",
    "rent or buy": "what waits may be of a time that is over; jobs that get their GPUs sooner may ask for more",
    "keep": "",
    "not enough data": "",
}
_WRONG_IF: Mapping[CapacityVerdict, str] = {
    "give back": "more GPUs are wanted at once than in the period, as at a deadline or a season that it does not have",
    "rent or buy": "the jobs that waited are held back by something else, as a quota: `dovetail why` of one of them",
    "keep": "",
    "not enough data": "",
}
