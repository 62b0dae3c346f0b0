# SPDX-License-Identifier: Apache-2.0
"""The broker on a cluster: lost answers, cut watches, schedulers that begin again, clocks that are wrong by hours, and
errors with what to do about them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.plane import (
    AgentRequest,
    BrokerRefused,
    EndCause,
    KubernetesBroker,
    LeaseOver,
    NotGranted,
    Option,
    Plane,
    on_cluster,
)
from dovetail.plane.broker import BrokerUnavailable, Current, Listed
from dovetail.plane.cluster_clock import ClusterClock
from dovetail.playground.faults import Fault
from dovetail.scheduler import plane_status, serve
from dovetail.scheduler.clock import Clock
from tests.patience import PATIENCE_S
from tests.plane.benches import GRACE_MS, HEARTBEAT_MS, SECOND, ClusterBench, cluster_bench, plane
from tests.scheduler.leased import LEASES, PLANES, REQUESTS, LeasedCluster

pytestmark = pytest.mark.usefixtures("no_waits")

HOURS_S = 7200


@pytest.fixture
async def bench() -> AsyncIterator[ClusterBench]:
    async with cluster_bench() as found:
        yield found


async def kept(agent: Plane, after_ms: int) -> None:
    """Wait until the agent was heard after this moment."""
    await agent.until(lambda: agent.heard_ms >= after_ms or None, agent.clock.now_ms() + 60_000)
    assert agent.heard_ms >= after_ms


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "resource"),
    [("POST", "leaserequests"), ("PATCH", "leaserequests"), ("PATCH", "gpuleases"), ("DELETE", "leaserequests")],
)
@pytest.mark.parametrize("effect", ["drop-before", "drop-after"])
async def test_whatever_is_lost_of_a_call_it_counts_once(
    bench: ClusterBench, verb: str, resource: str, effect: str
) -> None:
    bench.cluster.playground.faults.add(Fault(effect, verb, resource, times=4))  # type: ignore[arg-type]
    async with plane(bench) as agent:
        async with asyncio.timeout(PATIENCE_S), agent.lease(Option(gpus=2, minutes=5)) as lease:
            assert bench.leases() == bench.requests() == {lease.id}
        await bench.until(lambda: not bench.objects(LEASES) and not bench.objects(REQUESTS))
        assert lease.cause is EndCause.RETURNED


@pytest.mark.slow
async def test_cut_watches_and_histories_that_are_gone_lose_nothing(bench: ClusterBench) -> None:
    faults = bench.cluster.playground.faults
    async with plane(bench) as agent:
        lease = await agent.negotiate(Option(gpus=2, minutes=5))
        for cut in (faults.break_watches, faults.expire_history, faults.break_watches):
            cut()
            faults.break_watches()
            await kept(agent, agent.clock.now_ms())
            assert lease.live and agent.leases == (lease,)
        faults.break_watches()
        bench.maintain(lease.devices[0].node)
        await asyncio.wait_for(lease.over.wait(), PATIENCE_S)
        assert lease.cause is EndCause.MAINTENANCE


async def test_a_busy_server_is_asked_again(bench: ClusterBench) -> None:
    faults = bench.cluster.playground.faults
    for verb, resource in (("GET", "gpuleases"), ("POST", "leaserequests"), ("PATCH", "leases"), ("WATCH", "")):
        faults.add(Fault("answer", verb, resource, times=6, status=429, message="busy"))
        faults.add(Fault("answer", verb, resource, times=2, status=503, message="away"))
    async with plane(bench) as agent, asyncio.timeout(PATIENCE_S), agent.lease(Option(gpus=2)) as lease:
        assert lease.live


async def test_a_revocation_that_no_watch_shows_is_known_with_the_next_answer(bench: ClusterBench) -> None:
    """The event of the revocation is lost: what the list beside the answer shows is enough."""
    async with plane(bench) as agent:
        lease = await agent.negotiate(Option(gpus=2, minutes=5, same_node=True))
        bench.cluster.playground.faults.lose_events("gpuleases", 1000)
        bench.maintain(lease.devices[0].node)
        await asyncio.wait_for(lease.revoked.wait(), PATIENCE_S)
        assert lease.live
        await asyncio.wait_for(lease.over.wait(), PATIENCE_S)


async def test_a_server_that_is_away_leaves_leases_unsure_after_one_grace_and_they_come_back(
    bench: ClusterBench,
) -> None:
    playground = bench.cluster.playground
    async with plane(bench) as agent:
        lease = await agent.negotiate(Option(gpus=2, minutes=5))
        await playground.faults.go_away()
        away_ms = agent.clock.now_ms()
        await bench.until(lambda: not lease.live)
        assert agent.clock.now_ms() - away_ms <= GRACE_MS + 1000
        with pytest.raises(LeaseOver, match="not heard"):
            _ = lease.devices
        await playground.faults.come_back()
        await bench.until(lambda: lease.live)
        assert agent.leases == (lease,) and not lease.over.is_set()


async def test_the_next_scheduler_goes_on_with_the_lease() -> None:
    async with (
        LeasedCluster.opened("one", grace="20s") as cluster,
        Client(ClusterConfig(cluster.playground.url)) as client,
    ):
        agent = Plane(KubernetesBroker(client), "one/one", heartbeat_ms=HEARTBEAT_MS)
        async with cluster.scheduler():
            await agent.__aenter__()
            lease = await asyncio.wait_for(agent.negotiate(Option(gpus=2, minutes=5)), PATIENCE_S)
        away_ms = agent.clock.now_ms()
        waiting = asyncio.create_task(agent.negotiate(AgentRequest(options=(Option(gpus=2),), name="next")))
        await cluster.until(lambda: len(cluster.playground.store.list(REQUESTS)) == 2)
        assert "not read the request yet" in await agent.why("next")
        async with cluster.scheduler():
            await kept(agent, away_ms)
            assert lease.live
            assert (await asyncio.wait_for(waiting, PATIENCE_S)).live
            await agent.__aexit__(None, None, None)
            await cluster.until(lambda: not cluster.playground.store.list(LEASES))
            assert not cluster.playground.store.list(REQUESTS)


@pytest.mark.parametrize(("agent_s", "scheduler_s"), [(HOURS_S, 0), (-HOURS_S, 0), (0, HOURS_S), (-HOURS_S, HOURS_S)])
@pytest.mark.slow
async def test_clocks_that_are_wrong_by_hours_change_nothing(
    monkeypatch: pytest.MonkeyPatch, agent_s: int, scheduler_s: int
) -> None:
    monkeypatch.setattr(serve, "Clock", lambda: Clock(lambda: time.time() + scheduler_s))
    async with cluster_bench() as bench:
        broker = KubernetesBroker(bench.cluster_client, wall_ms=lambda: int(1000 * (time.time() + agent_s)))
        async with Plane(broker, "one/one", heartbeat_ms=HEARTBEAT_MS) as agent:
            lease = await asyncio.wait_for(agent.negotiate(Option(gpus=2, minutes=5 * SECOND)), PATIENCE_S)
            assert lease.live and 3 < lease.remaining().total_seconds() <= 5
            true_ms = int(1000 * (time.time() + scheduler_s))
            assert -100 <= broker.clock.now_ms() - true_ms < PATIENCE_S * 1000
            await asyncio.wait_for(lease.over.wait(), PATIENCE_S)
            # Never behind: the scheduler's own end has not come yet, or only just.
            assert lease.cause is EndCause.EXPIRED
            assert int(1000 * (time.time() + scheduler_s)) <= lease.end_ms + 500


async def test_a_scheduler_whose_clock_differs_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    offset_s = [0.0]
    monkeypatch.setattr(serve, "Clock", lambda: Clock(lambda: time.time() + offset_s[0]))
    async with (
        LeasedCluster.opened("one", grace="20s") as cluster,
        Client(ClusterConfig(cluster.playground.url)) as client,
    ):
        broker = KubernetesBroker(client)
        async with Plane(broker, "one/one", heartbeat_ms=HEARTBEAT_MS) as agent:
            for offset in (0.0, 600.0, -600.0):
                offset_s[0] = offset
                async with cluster.scheduler():
                    true_ms = int(1000 * (time.time() + offset))
                    await cluster.until(lambda true_ms=true_ms: abs(agent.heard_ms - true_ms) < 300_000)
                    assert abs(broker.clock.now_ms() - 1000 * (time.time() + offset)) < 300_000


async def test_a_process_of_before_left_an_action_that_was_not_read() -> None:
    async with LeasedCluster.opened("one") as cluster, Client(ClusterConfig(cluster.playground.url)) as client:
        broker = KubernetesBroker(client)
        async with cluster.scheduler():
            await cluster.lease_of("one", "train", {"duration": "1h"})
        cluster.act("one", "train", 7, "renew", until="2036-01-31T12:00:00Z")
        async with cluster.scheduler(), Plane(broker, "one/one", heartbeat_ms=HEARTBEAT_MS):
            # It is not adopted: returned, with a greater number.
            await cluster.until(lambda: not cluster.lease("one", "train"))


async def test_a_plane_that_does_not_exist_is_refused_with_what_to_do(bench: ClusterBench) -> None:
    for name, why in (
        ("one/other", "there is no AgentControlPlane 'other'"),
        ("no/one", "no AgentControl|is the namespace"),
    ):
        with pytest.raises(BrokerRefused, match=why):
            async with Plane(bench.broker, name) as agent:
                await asyncio.wait_for(agent.negotiate(Option()), PATIENCE_S)
    with pytest.raises(BrokerRefused, match="'one': a plane is named namespace/name"):
        async with on_cluster("one"):
            pass


async def test_the_control_plane_of_a_namespace_that_does_not_count_is_refused(bench: ClusterBench) -> None:
    second = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "AgentControlPlane"}
    spec = {"queue": "agents"}
    bench.cluster.playground.put(second | {"metadata": {"name": "second", "namespace": "one"}, "spec": spec})
    await bench.until(lambda: any(one.get("status", {}).get("phase") == "Ignored" for one in bench.objects(PLANES)))
    (ignored,) = [one for one in bench.objects(PLANES) if one.get("status", {}).get("phase") == "Ignored"]
    with pytest.raises(BrokerRefused, match="an older AgentControlPlane of the namespace counts"):
        async with Plane(bench.broker, f"one/{ignored['metadata']['name']}") as agent:
            await asyncio.wait_for(agent.negotiate(Option()), PATIENCE_S)


async def test_a_plane_that_is_deleted_has_its_leases_until_their_deadline(bench: ClusterBench) -> None:
    async with plane(bench) as agent:
        lease = await agent.negotiate(Option(gpus=2, minutes=5))
        async with Client(ClusterConfig(bench.cluster.playground.url)) as admin:
            await admin.request("DELETE", "/apis/dovetail.dev/v1alpha1/namespaces/one/agentcontrolplanes/one")
        await asyncio.wait_for(lease.revoked.wait(), PATIENCE_S)
        assert lease.revocation is not None and lease.revocation.cause is EndCause.PLANE_GONE
        await asyncio.wait_for(lease.over.wait(), PATIENCE_S)
        with pytest.raises(BrokerRefused, match="there is no AgentControlPlane"):
            await asyncio.wait_for(agent.negotiate(Option()), PATIENCE_S)


@pytest.mark.parametrize(
    ("verb", "resource", "status", "about"),
    [
        ("GET", "leaserequests", 403, "bind the ClusterRole dovetail-software-agent"),
        ("PATCH", "leases", 403, "bind the ClusterRole dovetail-software-agent"),
        ("GET", "gpuleases", 404, "are the definitions of Dovetail installed"),
        ("GET", "agentcontrolplanes", 401, "token or client certificate"),
    ],
)
async def test_what_no_repetition_cures_is_refused_at_first(
    bench: ClusterBench, verb: str, resource: str, status: int, about: str
) -> None:
    bench.cluster.playground.faults.add(Fault("answer", verb, resource, times=50, status=status, message="no"))
    with pytest.raises(BrokerRefused, match=about):
        async with plane(bench) as agent:
            await asyncio.wait_for(agent.negotiate(Option()), PATIENCE_S)


async def test_an_api_server_that_has_just_begun_does_not_end_a_plane(bench: ClusterBench) -> None:
    playground = bench.cluster.playground
    async with plane(bench) as agent:
        lease = await agent.negotiate(Option(gpus=2, minutes=5))
        for status in (401, 403, 404):
            playground.faults.add(Fault("answer", "GET", "gpuleases", times=2, status=status, message="not yet"))
        playground.faults.break_watches()
        await kept(agent, agent.clock.now_ms())
        assert lease.live


async def test_what_the_server_finds_invalid_is_refused_with_the_field(bench: ClusterBench) -> None:
    async with plane(bench) as agent:
        with pytest.raises(NotGranted, match=r"denied: .*spec\.alternatives\[0\]\.nvlink"):
            await asyncio.wait_for(agent.negotiate(Option(gpus=3, nvlink=True)), PATIENCE_S)
        faults = bench.cluster.playground.faults
        faults.add(Fault("answer", "POST", "leaserequests", status=422, message="spec.grace: Invalid value"))
        with pytest.raises(BrokerRefused, match=r"spec\.grace: Invalid value"):
            await asyncio.wait_for(agent.negotiate(Option()), PATIENCE_S)
        faults.add(Fault("answer", "POST", "leaserequests", status=403, message="exceeded quota: leases"))
        with pytest.raises(BrokerRefused, match="exceeded quota: leases"):
            await asyncio.wait_for(agent.negotiate(Option()), PATIENCE_S)
        assert (await asyncio.wait_for(agent.negotiate(Option()), PATIENCE_S)).live


async def test_two_processes_with_one_session_do_not_share_a_request(bench: ClusterBench) -> None:
    async with plane(bench, session="s") as first:
        await asyncio.wait_for(first.negotiate(Option(gpus=2, minutes=5)), PATIENCE_S)
        second = KubernetesBroker(bench.cluster_client)
        async with Plane(second, "one/one", heartbeat_ms=HEARTBEAT_MS, adopt=True, session="s") as other:
            with pytest.raises(BrokerRefused, match="another request has this name"):
                await asyncio.wait_for(other.negotiate(Option(gpus=3)), PATIENCE_S)


async def test_nothing_is_yielded_before_the_scheduler_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LeasedCluster.opened("one") as cluster, Client(ClusterConfig(cluster.playground.url)) as client:
        broker = KubernetesBroker(client)
        news = broker.follow("one/one")
        first = asyncio.ensure_future(anext(news))
        await broker.heartbeat("one/one")
        await asyncio.sleep(0.3)
        assert not first.done() and not broker.clock.known
        async with cluster.scheduler():
            assert await asyncio.wait_for(first, PATIENCE_S) == Listed(frozenset(), frozenset())
            current = await asyncio.wait_for(anext(news), PATIENCE_S)
            assert isinstance(current, Current) and current.at_ms <= broker.clock.now_ms()
            # Heartbeats of others date nothing here.
            monkeypatch.setattr(plane_status, "_HEARD_MS", 0)
            cluster.beat("one", holder="another")
            following = asyncio.ensure_future(anext(news))
            await asyncio.sleep(1.5)
            assert not following.done()
            await broker.heartbeat("one/one")
            assert isinstance(await asyncio.wait_for(following, PATIENCE_S), Current)
        cluster.playground.faults.expire_history()
        cluster.playground.faults.break_watches()
        with pytest.raises(BrokerUnavailable):
            await asyncio.wait_for(anext(news), PATIENCE_S)


async def test_a_scheduler_that_does_not_answer_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 0
    async with LeasedCluster.opened("one") as cluster, Client(ClusterConfig(cluster.playground.url)) as client:
        broker = KubernetesBroker(client, clock=ClusterClock(lambda: now_ms))
        for _ in range(20):
            await broker.heartbeat("one/one")
            now_ms += 10_000
        about = [record.getMessage() for record in caplog.records if record.name == "dovetail.plane.kubernetes"]
        assert len(about) == 3
        assert about[0].startswith("one/one: the scheduler has not answered heartbeats for 30 s: is it running")


async def test_on_cluster_takes_the_period_of_the_plane_and_grants(tmp_path: Path, bench: ClusterBench) -> None:
    bench.cluster.plane("one", heartbeat="1s", grace="4s")
    file = tmp_path / "kubeconfig"
    bench.cluster.playground.kubeconfig(file)
    async with (
        asyncio.timeout(PATIENCE_S),
        on_cluster("one/one", kubeconfig=str(file)) as agent,
        agent.lease(Option(gpus=1, minutes=5)) as lease,
    ):
        assert lease.live
        await kept(agent, agent.clock.now_ms() + 1000)
    await bench.until(lambda: not bench.objects(LEASES) and not bench.objects(REQUESTS))
    with pytest.raises(BrokerRefused, match="no/such/file"):
        async with on_cluster("one/one", kubeconfig="/no/such/file"):
            pass


async def test_a_request_that_nobody_grants_in_time_is_withdrawn(bench: ClusterBench) -> None:
    async with plane(bench) as agent:
        with pytest.raises(NotGranted, match="not granted in time"):
            await agent.negotiate(AgentRequest(options=(Option(gpus=64),), within_minutes=SECOND))
        await bench.until(lambda: not bench.objects(REQUESTS))
