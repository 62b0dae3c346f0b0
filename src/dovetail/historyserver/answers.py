# SPDX-License-Identifier: Apache-2.0
"""The answers to questions about the history, from any reader. With `own` as a user of that namespace may see them:
its names, and all else in one group, or as a number. Each raises StoreError, QuestionError, CurrencyError."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import tzinfo

from msgspec.structs import replace

from dovetail.advice.sizing.advise import advise, by_saving
from dovetail.advice.sizing.rule import JobAdviceList
from dovetail.cost.calendar import PeriodError, days, period_of, zone_of
from dovetail.cost.capacity import CapacityAnswer, capacity
from dovetail.cost.cells import GpuTimes, gpu_times
from dovetail.cost.costs import CostAnswer, costs
from dovetail.cost.focus import FocusPart, FocusRow, FocusRows
from dovetail.cost.grouping import PLACED_BY, Grouping
from dovetail.cost.idle_pods import IdleList, idle_list
from dovetail.cost.idle_rules import IDLE_RULES
from dovetail.cost.model_prices import market
from dovetail.cost.price_rules import PriceBook
from dovetail.cost.utilization import Utilization, utilization
from dovetail.history.idle import IdleRules
from dovetail.history.job_use import JobKey, JobsUse, job_uses
from dovetail.history.records import Period, PodRecord
from dovetail.history.store import HistoryReader
from dovetail.historyserver.elsewhere import Strangers, as_seen, shown_text
from dovetail.historyserver.questions import (
    AdviceQuestion,
    CapacityQuestion,
    CostQuestion,
    FocusQuestion,
    IdleQuestion,
    NoSuchJob,
    QuestionError,
    UseQuestion,
)

FOCUS_ROWS = 25_000
"""After so many rows an answer in the columns of FOCUS ends with the day: about 25 MB."""


def times_of(
    reader: HistoryReader, asked: UseQuestion, book: PriceBook | None, own: str = ""
) -> tuple[GpuTimes, Grouping, tzinfo]:
    """The GPU time of the period, by day if it is grouped so, and how it is grouped."""
    asked.check()
    known = reader.known()
    period, zone = _period(asked.period, asked.time_zone, known)
    inside = known.clipped(period.start_ms, period.end_ms) if known.ms else period
    named = list(days(inside, zone)) if inside.ms and asked.by == "day" else []
    grouping = Grouping(asked.by, asked.level, asked.parents, tuple(day for day, _ in named))
    by, pods, strangers = asked.by, grouping.of_pod_days, Strangers(own)
    if own:
        # Of others a user sees one group: that is made of pods, which sums of owners do not have.
        by = "pod" if asked.by != "gpu" else asked.by
        pods = replace(pods, seen=strangers.seen) if pods is not None and grouping.of_holders else None
    with _no_garbage():
        times = gpu_times(reader, period, book, [part for _, part in named], by, pods)
    if own:
        times = as_seen(times, strangers, asked.by in PLACED_BY)
    return times, grouping, zone


def _period(text: str, zone_name: str, known: Period) -> tuple[Period, tzinfo]:
    """Raises QuestionError."""
    try:
        zone = zone_of(zone_name)
        return period_of(text, zone, known.end_ms or int(time.time() * 1000)), zone
    except PeriodError as error:
        raise QuestionError(str(error)) from error


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Records are many and none is garbage: the collector would take a quarter of the time to find none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def use_of(reader: HistoryReader, asked: UseQuestion, own: str = "") -> Utilization:
    times, grouping, _ = times_of(reader, asked, None, own)
    return utilization(times, grouping, asked.limit)


def costs_of(reader: HistoryReader, asked: CostQuestion, book: PriceBook, own: str = "") -> CostAnswer:
    rule = next((one for one in IDLE_RULES if one == asked.idle), None)
    if rule is None:
        raise QuestionError(f"--idle {asked.idle!r} is none of {', '.join(IDLE_RULES)}")
    if rule != "separate" and asked.by in PLACED_BY:
        raise QuestionError(
            f"--idle {asked.idle} divides over holders of GPUs: use it with --by team, user or another holder"
        )
    times, grouping, _ = times_of(reader, asked, book, own)
    return costs(times, grouping, rule, book.currency, asked.limit)


def focus_of(reader: HistoryReader, asked: FocusQuestion, book: PriceBook, own: str = "") -> FocusPart:
    """Of as many days as have FOCUS_ROWS rows, one at least."""
    if own:
        raise QuestionError(
            "-o focus has the rows of all namespaces: it is answered to users that may list focuscosts in all of them"
        )
    known = reader.known()
    whole, zone = _period(asked.period, asked.time_zone, known)
    end_ms = min(whole.end_ms, known.end_ms) if asked.end_ms is None else min(asked.end_ms, known.end_ms)
    begin_ms = whole.start_ms if asked.until_ms is None else asked.until_ms
    until_ms = min(max(begin_ms, known.start_ms), known.end_ms)
    book.currency = book.currency or asked.currency
    made, rows, cells, unpriced = FocusRows(book, asked.account, asked.carry), list[FocusRow](), 0, 0
    for _, day in days(Period(until_ms, max(until_ms, end_ms)), zone):
        if cells >= FOCUS_ROWS:
            break
        with _no_garbage():
            times = gpu_times(reader, day, book, [day])
        rows += made.of(times)
        cells += len(times.cells)
        unpriced += sum(cell.time for cell in times.cells if cell.where.rule is None)
        until_ms = day.end_ms
    return FocusPart(tuple(rows), book.currency, made.carry, until_ms, max(until_ms, end_ms), unpriced)


def idle_of(reader: HistoryReader, asked: IdleQuestion, book: PriceBook, own: str = "") -> IdleList:
    rules = IdleRules(least_ms=asked.least_ms, exempt=frozenset(asked.exempt))
    return idle_list(reader, rules, book, _wanted(asked), own)


def _wanted(asked: IdleQuestion) -> Callable[[PodRecord], bool]:
    def wanted(pod: PodRecord) -> bool:
        named = asked.namespace in ("", pod.namespace) and asked.queue in ("", pod.queue)
        return named and (not asked.users or pod.user in asked.users)

    return wanted


def advice_of(reader: HistoryReader, asked: AdviceQuestion, book: PriceBook, own: str = "") -> JobAdviceList:
    period, uses = uses_of(reader, asked, own)
    advised = by_saving(advise(uses, market(reader.spans(period), book, period.end_ms)))
    return JobAdviceList(period.end_ms, uses.window.start_ms, uses.window.end_ms, advised)


def capacity_of(reader: HistoryReader, asked: CapacityQuestion, book: PriceBook, own: str = "") -> CapacityAnswer:
    if own:
        raise QuestionError(
            "capacity is of the whole cluster: it is answered to users that may list capacityadvice in all namespaces"
        )
    period, zone = _period(asked.period, asked.time_zone, reader.known())
    with _no_garbage():
        return capacity(reader, period, zone, book)


def uses_of(reader: HistoryReader, asked: AdviceQuestion, own: str = "") -> tuple[Period, JobsUse]:
    """The period, and how the jobs that were asked for used their GPUs in it."""
    known = reader.known()
    period = Period(max(known.start_ms, known.end_ms - round(asked.seconds * 1000)), known.end_ms)
    uses = job_uses(reader, period)
    return period, _chosen(uses, asked, own)


def _chosen(uses: JobsUse, asked: AdviceQuestion, own: str) -> JobsUse:
    """The jobs with these names, or all, in the namespace. Raises QuestionError."""
    from difflib import get_close_matches

    shown = {asked.namespace, own} - {""}
    jobs = [one for one in uses.jobs if shown <= {one.namespace}]
    if own:
        jobs = [replace(one, messages=tuple(shown_text(text, own) for text in one.messages)) for one in jobs]
    if not asked.jobs:
        return replace(uses, jobs=tuple(jobs))
    found: dict[JobKey, None] = {}
    for name in asked.jobs:
        within, _, short = name.rpartition("/")
        of = [one for one in jobs if one.name == short and within in ("", one.namespace)]
        if not of:
            near = get_close_matches(short, {one.name for one in jobs}, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise NoSuchJob(f"job {name} held no GPU in the period{hint}")
        found.update({(one.namespace, one.name): None for one in of})
    return replace(uses, jobs=tuple(one for one in jobs if (one.namespace, one.name) in found))
