# SPDX-License-Identifier: Apache-2.0
"""Answers from the sums of days are those from the records; and a period has exactly what its days have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cost.calendar import days, zone_of
from dovetail.cost.cells import gpu_times
from dovetail.cost.costs import CostAnswer, costs
from dovetail.cost.group_sums import Sums, group_sums
from dovetail.cost.grouping import HELD_BY, PLACED_BY, Grouping
from dovetail.cost.price_rules import PriceBook, PriceRule
from dovetail.cost.utilization import Utilization, utilization
from dovetail.history.day_sums import DaySums
from dovetail.history.pod_days import PodDay
from dovetail.history.records import DAY_MS, HOUR_MS, GpuHold, GpuSpan, HistoryBatch, Period, PodRecord
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.sqlite.store import SqliteStore
from tests.history.late_writes import DAYS, END_MS, histories

BYS = (*HELD_BY, "label=team", *PLACED_BY)
PARENTS = {"vision": "lab", "audio": "lab"}
BASE = [
    PriceRule(10_000_007, "USD", "2026-01-01", "a bill", model="h100"),
    PriceRule(3_000_001, "EUR", "2026-01-01", "a bill", model="l4", per_gpu=True),
]
"""The first one is of a node, and its three GPUs have not the same price. A GPU of an unknown model has none."""
CHANGES = {
    "": [],
    "at midnight": [PriceRule(9_999_999, "USD", "2026-01-02", "a new bill", model="h100", from_ms=DAY_MS)],
    "in a day": [PriceRule(9_999_998, "USD", "2026-01-02", "a bill", model="h100", from_ms=DAY_MS + 6 * HOUR_MS)],
    "of a node": [PriceRule(7_000_001, "USD", "2026-01-02", "a bill", node="n2")],
}
AMOUNTS = Sums.__struct_fields__[Sums.__struct_fields__.index("allocated_time") :]
PERIODS = st.sampled_from([(0, 3 * 24), (0, 74), (5, 60), (24, 48), (23, 50), (30, 40)]).map(
    lambda hours: Period(hours[0] * HOUR_MS + 1 * (hours[0] == 5), hours[1] * HOUR_MS)
)


class Records(SqliteReader):
    """A file without sums."""

    def day_sums(self, period: Period) -> Iterator[DaySums]:
        return iter(())

    def pod_days(self, period: Period) -> Iterator[PodDay]:
        return iter(())


def book(change: str) -> PriceBook:
    return PriceBook([BASE + CHANGES[change]], currency="USD", rates={"EUR": 1_100_000})


def answers(reader: SqliteReader, period: Period, by: str, change: str, zone: str) -> tuple[CostAnswer, Utilization]:
    named = list(days(period, zone_of(zone))) if by == "day" else []
    grouping = Grouping(by, 1, PARENTS, tuple(day for day, _ in named))
    times = gpu_times(reader, period, book(change), [part for _, part in named], by, grouping.of_pod_days)
    return costs(times, grouping, "separate", "USD"), utilization(times, grouping)


@pytest.mark.slow
@settings(max_examples=40)
@given(histories(), PERIODS, st.sampled_from(sorted(CHANGES)), st.sampled_from(["UTC", "+05:30"]))
def test_sums_change_no_answer(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[HistoryBatch, int]],
    period: Period,
    change: str,
    zone: str,
) -> None:
    path = tmp_path_factory.mktemp("file") / "history.db"
    with closing(SqliteStore(path)) as store:
        for batch, steps in batches:
            store.write(batch)
            for _ in range(steps):
                store.retain(END_MS)
        with closing(Records(path)) as records:
            for by in BYS:
                assert answers(store, period, by, change, zone) == answers(records, period, by, change, zone)


@pytest.mark.slow
@settings(max_examples=30)
@given(histories(), st.sampled_from(sorted(CHANGES)), st.sampled_from(BYS[:-1]))
def test_a_period_has_exactly_what_its_days_have(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[HistoryBatch, int]], change: str, by: str
) -> None:
    def sums(start_ms: int, end_ms: int) -> Counter[tuple[str, str, str]]:
        rows = group_sums(gpu_times(store, Period(start_ms, end_ms), book(change), by=by), Grouping(by)).rows
        return Counter({(row.kind, row.name, name): getattr(row, name) for row in rows for name in AMOUNTS})

    with closing(SqliteStore(tmp_path_factory.mktemp("file") / "history.db")) as store:
        for batch, _ in batches:
            store.write(batch)
        ends = [5 * HOUR_MS, *(day * DAY_MS for day in range(1, DAYS + 1)), END_MS]
        together = sum((sums(*ends_of_day) for ends_of_day in pairwise(ends)), Counter[tuple[str, str, str]]())
        assert +together == +sums(ends[0], END_MS)


class NoHolds(SqliteReader):
    """A file of which no hold may be read."""

    def holds(self, period: Period) -> Iterator[GpuHold]:
        raise AssertionError(period)


@pytest.mark.parametrize("by", BYS)
def test_whole_days_are_answered_without_a_hold(tmp_path: Path, by: str) -> None:
    path, three = tmp_path / "history.db", Period(0, DAYS * DAY_MS)
    with closing(SqliteStore(path)) as store:
        store.write(HistoryBatch(END_MS, [GpuSpan("g", "n2", 0, 3, "H100", "healthy", 0)]))
        while store.retain(END_MS):
            pass
    with closing(NoHolds(path)) as reader:
        for change in CHANGES:
            summed = ("", "at midnight") if by == "model" else ("", "at midnight", "of a node")
            if by not in ("gpu", "day") and change in summed:
                answers(reader, three, by, change, "UTC")
                continue
            with pytest.raises(AssertionError):
                answers(reader, three, by, change, "UTC")


def test_a_pod_whose_record_is_of_another_time_keeps_its_name(tmp_path: Path) -> None:
    """As after a clock that went wrong: what it held counts all the same."""
    path = tmp_path / "history.db"
    pod = PodRecord("late", "ns", "late-0", "late", submitted_ms=DAYS * DAY_MS, bound_ms=DAYS * DAY_MS)
    span = GpuSpan("g", "n1", 0, 1, "H100", "healthy", 0)
    with closing(SqliteStore(path)) as store:
        store.write(HistoryBatch(END_MS, [span], [GpuHold("late", "g", 1000, "whole", DAY_MS, 2 * DAY_MS)], [pod]))
        while store.retain(END_MS):
            pass
        found, _ = answers(store, Period(DAY_MS, 2 * DAY_MS), "job", "", "UTC")
    assert [(row.name, row.jobs, row.pods) for row in found.rows] == [("ns/late", 1, 1)]
