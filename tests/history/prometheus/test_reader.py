# SPDX-License-Identifier: Apache-2.0
"""A Prometheus that has scraped publications gives the answers of the file, whatever was written, and how late."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.cost.calendar import days, zone_of
from dovetail.cost.cells import gpu_times
from dovetail.cost.costs import CostAnswer, costs
from dovetail.cost.grouping import Grouping
from dovetail.cost.price_rules import PriceBook, PriceRule
from dovetail.cost.utilization import Utilization, utilization
from dovetail.history.idle import IdleRules, idleness
from dovetail.history.job_use import job_uses
from dovetail.history.jobs import past_jobs
from dovetail.history.prometheus.publication import Publication
from dovetail.history.prometheus.reader import PrometheusReader
from dovetail.history.records import DAY_MS, HOUR_MS, GpuSpan, HistoryBatch, Outcome, Period, PodRecord
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.sqlite.store import SqliteStore
from dovetail.history.store import HistoryReader
from tests.history.late_writes import END_MS, histories
from tests.history.prometheus.served import Scraped, scraped

BYS = ("team", "job", "pod", "node", "gpu", "model", "day")
RULES = [
    PriceRule(10_000_007, "USD", "2026-01-01", "a bill", model="h100"),
    PriceRule(3_000_001, "USD", "2026-01-01", "a bill", model="l4", per_gpu=True, from_ms=DAY_MS + 6 * HOUR_MS),
]
PERIODS = st.sampled_from([(0, 3 * 24), (0, 74), (5, 60), (24, 48), (23, 50), (30, 40), (0, 5)]).map(
    lambda hours: Period(hours[0] * HOUR_MS + 1 * (hours[0] == 5), hours[1] * HOUR_MS)
)


def money(reader: HistoryReader, period: Period, by: str) -> tuple[CostAnswer, Utilization]:
    named = list(days(period, zone_of("UTC"))) if by == "day" else []
    grouping = Grouping(by, 1, {}, tuple(day for day, _ in named))
    times = gpu_times(reader, period, PriceBook([RULES]), [part for _, part in named], by, grouping.of_pod_days)
    return costs(times, grouping, "separate", "USD"), utilization(times, grouping)


def sensible(pod: PodRecord) -> PodRecord:
    """With times in their order."""
    bound_ms, started_ms = sorted([pod.bound_ms, pod.started_ms])
    ended_ms = max(pod.ended_ms, started_ms) if pod.ended_ms else 0
    outcome: Outcome = "Completed" if ended_ms else ""
    return replace(pod, bound_ms=bound_ms, started_ms=started_ms, ended_ms=ended_ms, outcome=outcome)


@pytest.mark.slow
@settings(max_examples=30)
@given(histories(), PERIODS, st.sampled_from(BYS))
def test_all_answers_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[HistoryBatch, int]], period: Period, by: str
) -> None:
    path, prometheus = tmp_path_factory.mktemp("file") / "history.db", Scraped()
    publication = Publication(path, kept_ms=10 * DAY_MS)
    with closing(SqliteStore(path)) as store:
        for number, (batch, steps) in enumerate(batches):
            pods = [sensible(pod) for pod in batch.pods]
            store.write(replace(batch, until_ms=END_MS + number, pods=pods))
            for _ in range(steps):
                store.retain(END_MS)
            publication.publish()
            prometheus.scrape(publication.path.read_text())
    with closing(SqliteReader(path)) as file, scraped(prometheus) as access:
        found = PrometheusReader(access)
        assert found.known() == file.known()
        assert money(found, period, by) == money(file, period, by)
        assert past_jobs(found.pods(period), END_MS, steps=True) == past_jobs(file.pods(period), END_MS, steps=True)
        for name in ("j", "k", "none"):
            assert list(found.job(name)) == list(file.job(name))
        to_end = Period(period.start_ms, END_MS)
        assert list(found.use(to_end)) == list(file.use(to_end))
        assert job_uses(found, to_end) == job_uses(file, to_end)
        assert idleness(found, IdleRules(0)) == idleness(file, IdleRules(0))
        assert list(found.gaps(period)) == list(file.gaps(period))
        for one in (found, file):
            one.close()


def test_a_record_without_length_at_midnight_is_there(tmp_path: Path) -> None:
    path, prometheus = tmp_path / "history.db", Scraped()
    span = GpuSpan("a", "n1", 0, 1, "L4", "healthy", DAY_MS, DAY_MS)
    with closing(SqliteStore(path)) as store:
        store.write(HistoryBatch(2 * DAY_MS, [replace(span, start_ms=0), span]))
    publication = Publication(path)
    publication.publish()
    prometheus.scrape(publication.path.read_text())
    with scraped(prometheus) as access:
        assert list(PrometheusReader(access).spans(Period(0, 2 * DAY_MS))) == [replace(span, start_ms=0), span]
