# SPDX-License-Identifier: Apache-2.0
"""The page about the scheduler: rates and latencies of its metrics, of the replica that leads; and which users may
see it."""

from __future__ import annotations

import asyncio
import math

import pytest
from aiohttp import web

from dovetail.dashboard.access import OwnAccess
from dovetail.dashboard.app import SchedulerSources
from dovetail.dashboard.page_types import SchedulerPage
from dovetail.dashboard.scheduler_metrics import SchedulerMetrics, quantile
from dovetail.dashboard.sources import SourceAway
from tests.dashboard.test_app import OnlyTeamA
from tests.dashboard.worlds import NOW_MS, FakeSource, served

METRICS = """
# TYPE dovetail_leader gauge
dovetail_leader {leader}
# TYPE dovetail_step_seconds histogram
dovetail_step_seconds_bucket{{le="0.01"}} {quick}
dovetail_step_seconds_bucket{{le="0.1"}} {steps}
dovetail_step_seconds_bucket{{le="+Inf"}} {steps}
dovetail_step_seconds_count {steps}
dovetail_step_seconds_sum 1
# TYPE dovetail_refusals_total counter
dovetail_refusals_total{{reason="NoNodeFits",when="NotYet"}} {refused}
dovetail_refusals_total{{reason="OverLimit",when="Never"}} 4
# TYPE dovetail_decisions_total counter
dovetail_decisions_total{{kind="Bind"}} 7
# TYPE dovetail_watch_staleness_seconds gauge
dovetail_watch_staleness_seconds{{resource="nodes"}} 2
dovetail_watch_staleness_seconds{{resource="pods"}} 9.5
# TYPE dovetail_pending_gangs gauge
dovetail_pending_gangs{{state="waiting"}} 3
# TYPE dovetail_reports_queued gauge
dovetail_reports_queued 1
"""


class Replica:
    """Serves METRICS."""

    def __init__(self, **numbers: int) -> None:
        self.numbers = {"leader": 1, "quick": 50, "steps": 100, "refused": 10, **numbers}
        self.status = 200
        self.pause_s = 0.0
        self.asked = 0

    async def __aenter__(self) -> str:
        async def metrics(request: web.Request) -> web.StreamResponse:
            self.asked += 1
            reply = web.StreamResponse(status=self.status)
            await reply.prepare(request)
            first, end = METRICS.format(**self.numbers).split("# TYPE dovetail_refusals", 1)
            await reply.write(first.encode())
            await asyncio.sleep(self.pause_s)
            await reply.write(f"# TYPE dovetail_refusals{end}".encode())
            return reply

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"{site.name.replace('0.0.0.0', '127.0.0.1')}/metrics"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def test_a_quantile_is_in_proportion_inside_its_bucket() -> None:
    buckets = [(0.01, 50.0), (0.1, 100.0), (math.inf, 100.0)]
    assert quantile(buckets, 0.5) == pytest.approx(0.01)
    assert quantile(buckets, 0.75) == pytest.approx(0.055)
    assert quantile([(0.1, 0.0), (math.inf, 4.0)], 0.5) == 0.1, "the last bucket has no bound"
    assert quantile([(0.1, 0.0), (math.inf, 0.0)], 0.5) is None and quantile([], 0.5) is None


async def test_rates_are_those_between_the_first_look_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("dovetail.dashboard.scheduler_metrics.time.monotonic", lambda: now[0])
    replica = Replica()
    async with replica as url:
        metrics = SchedulerMetrics(url, lambda: NOW_MS)
        page = await metrics.page()
        assert (page.window_s, page.steps, page.latencies[0].count) == (0, 100, 100)
        assert (page.cache[0].resource, page.cache[0].age_s, page.reports_queued) == ("pods", 9.5, 1)
        assert page.pending == (("waiting", 3),) and page.latencies[1].median_s is None
        assert await metrics.page() == page and replica.asked == 1, "read once for all viewers"
        now[0] += 60
        replica.numbers |= {"quick": 50, "steps": 200, "refused": 40}
        page = await metrics.page()
        assert [(one.reason, one.count, one.a_minute) for one in page.refusals] == [
            ("NoNodeFits", 40, 30.0), ("OverLimit", 4, 0.0),
        ]  # fmt: skip
        assert page.window_s == 60 and page.latencies[0].count == 100
        assert page.latencies[0].median_s == pytest.approx(0.055), "of the steps of the last minute"
        now[0] += 60
        replica.numbers |= {"quick": 1, "steps": 1, "refused": 0}
        page = await metrics.page()
        assert (page.window_s, page.steps) == (0, 1), "another process begins anew"


async def test_metrics_that_come_in_parts_are_read_whole() -> None:
    replica = Replica()
    replica.pause_s = 0.05
    async with replica as url:
        page = await SchedulerMetrics(url, lambda: NOW_MS).page()
    assert page.reports_queued == 1 and len(page.refusals) == 2


async def test_a_replica_that_does_not_lead_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(leader=0)
    async with replica as url:
        with pytest.raises(SourceAway, match="none of the replicas that answer leads"):
            await SchedulerMetrics(url, lambda: NOW_MS).page()
        replica.status = 403
        with pytest.raises(SourceAway, match="the scheduler answers 403"):
            await SchedulerMetrics(url, lambda: NOW_MS).page()
    with pytest.raises(SourceAway, match=r"/metrics: "):
        await SchedulerMetrics(url, lambda: NOW_MS).page()


async def test_only_users_of_all_namespaces_see_the_scheduler() -> None:
    async with Replica() as url:
        sources = SchedulerSources(SchedulerMetrics(url, lambda: NOW_MS))
        async with served(FakeSource(), OnlyTeamA(), scheduler=sources) as (client, _):
            for token, status in (("a", 403), ("admin", 200)):
                headers = {"Authorization": f"Bearer {token}"}
                async with client.get("/api/scheduler.json?namespace=team-a", headers=headers) as reply:
                    assert reply.status == status
        own = served(FakeSource(), OwnAccess(), scheduler=sources)
        async with own as (client, _), client.get("/api/scheduler.csv") as reply:
            lines = (await reply.text()).splitlines()
            assert lines[:2] == ["reason,when,count,a_minute", "NoNodeFits,NotYet,10,0.0"]
    async with served(FakeSource()) as (client, _), client.get("/api/scheduler.json") as reply:
        assert reply.status == 404 and "--scheduler-metrics URL" in (await reply.json())["error"]
    assert SchedulerPage.rows == "refusals"
