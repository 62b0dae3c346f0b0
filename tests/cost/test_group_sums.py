# SPDX-License-Identifier: Apache-2.0
"""Rows of an answer, with each limit, against a plain computation: cell by cell of the records, with sets of names."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.cost.cells import GpuTimes, gpu_times
from dovetail.cost.costs import NUMBERS, cost_rows, costs
from dovetail.cost.group_sums import OTHERS, RowKind, Sums
from dovetail.cost.grouping import PLACED_BY, Grouping
from dovetail.cost.idle_rules import IDLE_RULES, IdleRule, shared
from dovetail.cost.price_rules import PriceBook, PriceRule
from dovetail.cost.utilization import utilization
from dovetail.history.records import DAY_MS, HOUR_MS, GpuHold, GpuSpan, HistoryBatch, Period, PodRecord
from dovetail.history.sqlite.store import SqliteStore
from dovetail.history.store import HistoryReader
from tests.cost.histories import book, histories
from tests.cost.test_summed_days import BYS, PARENTS, PERIODS, Records
from tests.cost.test_summed_days import book as priced
from tests.history import late_writes
from tests.history.memory_reader import MemoryReader

LIMITS = st.integers(1, 4)
ROUNDED = 6
"""In millionths: a cost is six amounts together, of which each is rounded."""
AMOUNTS = Sums.__struct_fields__[Sums.__struct_fields__.index("allocated_time") :]


class Plain:
    """What the cells of records add up to, with everything in dictionaries and sets."""

    def __init__(self, times: GpuTimes, grouping: Grouping) -> None:
        self.sums: dict[tuple[RowKind, str], Sums] = {}
        self.pods = defaultdict[str, set[str]](set)
        self.jobs = defaultdict[str, set[str]](set)
        for cell in times.cells:
            pod = times.pods.get(cell.pod_uid)
            kind: RowKind = "group"
            if not grouping.of_holders:
                name = grouping.of_place(cell.where)
            elif pod is not None:
                name = grouping.of_pods()(pod)
            elif cell.state == "allocated":
                name = "(unknown pod)"
            else:
                kind, name = cell.state, f"({cell.state})"
            self.sums.setdefault((kind, name), Sums(name, kind)).add(cell)
            if cell.pod_uid:
                self.pods[name].add(cell.pod_uid)
            if pod is not None:
                self.jobs[name].add(pod.job or pod.name)

    def rows(self, by: str, limit: int) -> tuple[list[Sums], int]:
        """The rows, and how many groups are in that of the others."""
        groups = [row for row in self.sums.values() if row.kind == "group"]
        groups.sort(key=lambda row: (-row.allocated - row.nobodys, -row.allocated_time, row.name))
        if by == "day":
            groups.sort(key=attrgetter("name"))
        rest = [] if by in ("day", "queue") else groups[limit:]
        rows = groups[: len(groups) - len(rest)]
        names = [{row.name} for row in rows]
        if rest:
            rows.append(Sums(OTHERS, "others", bearers=sum(row.allocated_time > 0 for row in rest)))
            names.append({row.name for row in rest})
            for name in AMOUNTS:
                setattr(rows[-1], name, sum(getattr(row, name) for row in rest))
        for row, of in zip(rows, names, strict=True):
            row.pods = len(set().union(*(self.pods[name] for name in of)))
            row.jobs = len(set().union(*(self.jobs[name] for name in of)))
        nobodys = [row for row in self.sums.values() if row.kind != "group"]
        return rows + sorted(nobodys, key=lambda row: (-row.nobodys, row.name)), len(rest)

    def whole(self) -> tuple[int, int]:
        return len(set().union(*self.jobs.values())), len(set().union(*self.pods.values()))


def check(
    records: HistoryReader, summed: HistoryReader, period: Period, prices: PriceBook, by: str, rule: IdleRule,
    limit: int,
) -> None:  # fmt: skip
    """The answer of `summed` is what is worked out of `records`; its total is that without a limit, and so are its rows
    but for what is rounded."""
    segments = [half for half in (Period(period.start_ms, DAY_MS), Period(DAY_MS, period.end_ms)) if half.ms]
    segments = segments if by == "day" else []
    grouping = Grouping(by, 1, PARENTS, ("Mon", "Tue")[-len(segments) :])
    plain = Plain(gpu_times(records, period, prices, segments, by), grouping)
    rows, others = plain.rows(by, limit)
    times = gpu_times(summed, period, prices, segments, by, grouping.of_pod_days)
    found, whole = costs(times, grouping, rule, "USD", limit), costs(times, grouping, rule, "USD")
    assert (found.rows, found.others) == (cost_rows(shared(rows, rule)), others)
    assert (found.total, whole.others) == (whole.total, 0)
    assert (found.total.jobs, found.total.pods) == plain.whole()
    for one, unlimited in zip(found.rows, whole.rows, strict=False):
        if one.kind == "group":
            assert one.name == unlimited.name
            assert all(abs(getattr(one, name) - getattr(unlimited, name)) <= ROUNDED for name in NUMBERS)


@settings(max_examples=20)
@given(histories(), st.sampled_from([by for by in BYS if by != "day"]), st.sampled_from(IDLE_RULES), LIMITS)
@pytest.mark.slow
def test_rows_of_records(reader: MemoryReader, by: str, rule: IdleRule, limit: int) -> None:
    check(reader, reader, reader.until, book(), by, rule, limit)


@pytest.mark.slow
@settings(max_examples=30)
@given(late_writes.histories(), PERIODS, st.sampled_from(["", "at midnight", "of a node"]), LIMITS)
def test_rows_of_summed_days(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[HistoryBatch, int]], period: Period, change: str,
    limit: int,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("file") / "history.db"
    with closing(SqliteStore(path)) as store:
        for batch, steps in batches:
            store.write(batch)
            for _ in range(steps):
                store.retain(late_writes.END_MS)
        with closing(Records(path)) as records:
            for number, by in enumerate(BYS):
                rule = IDLE_RULES[(number + limit) % 3] if by not in PLACED_BY else "separate"
                check(records, store, period, priced(change), by, rule, limit)


MANY = 9


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Two summed days of nine jobs on a node each, of which the later ones held their GPU for longer, and the first one
    a GPU of another node, too; the last two have no price."""
    path, end_ms = tmp_path / "history.db", 2 * DAY_MS + 2 * HOUR_MS
    spans = [GpuSpan(f"g{n}", f"n{n}", 0, 1, "H100" if n < MANY - 2 else "Z9", "healthy", 0) for n in range(MANY)]
    pods = [PodRecord(f"u{n}", "ns", f"p{n}", f"j{n}", submitted_ms=n, bound_ms=1000) for n in range(MANY)]
    holds = [GpuHold(f"u{n}", f"g{n}", 1000, "whole", 1000, (30 + n) * HOUR_MS) for n in range(MANY)]
    spans.append(replace(spans[0], gpu="g00", node="n00"))
    holds.append(replace(holds[0], gpu="g00"))
    with closing(SqliteStore(path)) as store:
        store.write(HistoryBatch(end_ms, sorted(spans, key=attrgetter("gpu")), holds, pods))
        while store.retain(end_ms):
            pass
    return path


PRICES = [PriceRule(10_000_007, "USD", "2026-01-01", "a bill", model="h100")]
TWO_DAYS = Period(0, 2 * DAY_MS)


@pytest.mark.parametrize("rule", IDLE_RULES)
def test_the_largest_groups_have_rows_and_the_others_one(many: Path, rule: IdleRule) -> None:
    with closing(SqliteStore(many)) as store, closing(Records(many)) as records:
        for limit in (1, 3, MANY, MANY + 1):
            check(records, store, TWO_DAYS, PriceBook([PRICES]), "job", rule, limit)
        times = gpu_times(store, TWO_DAYS, PriceBook([PRICES]), (), "job", Grouping("job").of_pod_days)
        found = costs(times, Grouping("job"), rule, "USD", 3)
    assert not times.cells, "whole days make no cell for each job"
    assert [row.name for row in found.rows[:4]] == ["ns/j0", "ns/j6", "ns/j5", OTHERS]
    assert (found.others, found.rows[3].jobs, found.rows[3].kind) == (MANY - 3, MANY - 3, "others")
    if rule == "even":
        one, *_, others = [row.shared_micro for row in found.rows]
        assert abs(others - (MANY - 3) * one) < MANY


def test_groups_without_a_price_follow_by_time_and_a_pod_is_in_each_of_its_nodes(many: Path) -> None:
    with closing(SqliteStore(many)) as store, closing(Records(many)) as records:
        for limit in (1, 8, MANY + 1):
            check(records, store, TWO_DAYS, PriceBook([PRICES]), "node", "separate", limit)
        times = gpu_times(store, TWO_DAYS, PriceBook([PRICES]), (), "node", Grouping("node").of_pod_days)
        rows, starts = costs(times, Grouping("node"), "separate", "USD").rows, utilization(times, Grouping("node"))
    assert [row.name for row in rows] == ["n6", "n5", "n4", "n3", "n2", "n1", "n0", "n00", "n8", "n7"]
    assert [row.pods for row in rows] == [1] * (MANY + 1) and starts.total.pods == MANY
    assert {row.name: row.started for row in starts.rows if row.started != 1} == {"n00": 0}


def test_the_others_waited_together(many: Path) -> None:
    with closing(SqliteStore(many)) as store:
        times = gpu_times(store, TWO_DAYS, None, (), "job", Grouping("job").of_pod_days)
        found = utilization(times, Grouping("job"), 2)
        whole = utilization(times, Grouping("job"))
    # Without prices those come first that held GPUs for longest; those with a higher number were submitted later.
    assert [(row.name, row.started, row.mean_wait_ms) for row in found.rows[:3]] == [
        ("ns/j0", 1, 1000), ("ns/j8", 1, 992), (OTHERS, MANY - 2, 996),
    ]  # fmt: skip
    assert found.total == whole.total and found.total.mean_wait_ms == 996
