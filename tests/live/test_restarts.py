# SPDX-License-Identifier: Apache-2.0
"""Restarts, races, two schedulers and a server that goes away: no pod is lost, no GPU is allocated twice."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from dovetail.core.policy import Policy
from dovetail.playground.faults import Fault
from dovetail.scheduler.serve import LeadershipLost
from tests.live.conftest import NAMESPACE, Cluster, eventually, stays
from tests.patience import PATIENCE_S

WITH_FAULTS = pytest.mark.parametrize("cluster", ["playground"], indirect=True)


@pytest.mark.slow
async def test_a_restart_at_any_moment_neither_loses_nor_doubles(cluster: Cluster) -> None:
    nodes = [await cluster.node(f"n{i}") for i in range(4)]
    for number in range(32):
        await cluster.pod(f"p{number}", 1)
    for pause_s in (0.1, 0.2, 0.3, 0.4):
        async with cluster.scheduler():
            await asyncio.sleep(pause_s)
    async with cluster.scheduler():
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 32)
    assert Counter(bound.values()) == dict.fromkeys(nodes, 8)


async def test_only_the_leader_writes_and_another_takes_over(cluster: Cluster) -> None:
    node = await cluster.node("a")
    await cluster.namespace_exists(NAMESPACE)
    async with cluster.scheduler(leader_elect=True, identity="one") as first:
        await cluster.pod("p0", 1)
        await eventually(cluster.bound, lambda bound: bound == {"p0": node})
        async with cluster.scheduler(leader_elect=True, identity="two"):
            await cluster.pod("p1", 1)
            await eventually(cluster.bound, lambda bound: len(bound) == 2)
            lease_path = "/apis/coordination.k8s.io/v1/namespaces/dovetail-system/leases/dovetail-scheduler"
            assert (await cluster.get(lease_path))["spec"]["holderIdentity"].startswith("one")
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await cluster.pod("p2", 1)
            await eventually(cluster.bound, lambda bound: len(bound) == 3)
            assert (await cluster.get(lease_path))["spec"]["holderIdentity"].startswith("two")


async def test_a_pod_taken_by_another_scheduler_is_counted_where_it_went(cluster: Cluster) -> None:
    a, b = await cluster.node("a", gpus=1), await cluster.node("b", gpus=1)
    pod = await cluster.pod("p", 1)
    await cluster.create(
        cluster.pods_path("p") + "/binding",
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": b}},
    )
    assert pod["metadata"]["name"] == "p"
    async with cluster.scheduler():
        await cluster.pod("q", 1)
        await eventually(cluster.bound, lambda bound: bound == {"p": b, "q": a})


@WITH_FAULTS
async def test_binds_that_fail_are_repaired(cluster: Cluster) -> None:
    assert cluster.playground is not None
    for number in range(2):
        await cluster.node(f"n{number}")
    await cluster.pod_group("g", 4)
    faults = cluster.playground.faults
    faults.add(Fault("answer", "POST", "pods/binding", status=500, times=2))
    faults.add(Fault("drop-after", "POST", "pods/binding"))
    faults.add(Fault("drop-before", "POST", "pods/binding"))
    for number in range(4):
        await cluster.pod(f"p{number}", 4, schedulingGroup={"podGroupName": "g"})
    async with cluster.scheduler():
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 4)
        assert sorted(Counter(bound.values()).values()) == [2, 2]


@WITH_FAULTS
async def test_a_gang_that_starts_by_half_is_released_by_the_deadline(cluster: Cluster) -> None:
    assert cluster.playground is not None
    await cluster.node("a")
    await cluster.pod_group("g", 2)
    # One member can never be bound: the API server refuses it for as long as the test runs.
    cluster.playground.faults.add(Fault("answer", "POST", "pods/binding", "p1", status=403, times=10_000))
    for number in range(2):
        await cluster.pod(f"p{number}", 4, schedulingGroup={"podGroupName": "g"})
    async with cluster.scheduler(policy=Policy(attempts_per_step=64, start_deadline_ms=2_000)):
        await eventually(cluster.bound, lambda bound: bound.keys() == {"p0"})
        released = await eventually(lambda: cluster.events("GangReleased"), bool)
        assert released[0]["regarding"]["name"] == "p0"
        await eventually(cluster.bound, lambda bound: not bound)


@pytest.mark.slow
@WITH_FAULTS
async def test_the_server_goes_away_and_comes_back(cluster: Cluster) -> None:
    assert cluster.playground is not None
    node = await cluster.node("a")
    await cluster.pod("before", 1)
    async with cluster.scheduler():
        await eventually(cluster.bound, lambda bound: bound == {"before": node})
        await cluster.playground.faults.go_away()
        await asyncio.sleep(2.0)
        cluster.playground.faults.expire_history()
        await cluster.playground.faults.come_back()
        await cluster.pod("after", 1)
        await eventually(cluster.bound, lambda bound: bound.keys() == {"before", "after"})


@pytest.mark.slow
@WITH_FAULTS
async def test_losing_the_lease_ends_the_process(cluster: Cluster) -> None:
    await cluster.node("a")
    await cluster.namespace_exists(NAMESPACE)
    async with cluster.scheduler(leader_elect=True, identity="one") as task:
        await cluster.pod("p", 1)
        await eventually(cluster.bound, lambda bound: len(bound) == 1)
        path = "/apis/coordination.k8s.io/v1/namespaces/dovetail-system/leases/dovetail-scheduler"
        await cluster.patch(path, {"spec": {"holderIdentity": "thief", "leaseTransitions": 9}})
        done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
        assert done
        error = task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, LeadershipLost)
        await cluster.pod("q", 1)
        await stays(cluster.bound, lambda bound: len(bound) == 1, for_s=0.5)


@WITH_FAULTS
@pytest.mark.slow
async def test_an_old_refusal_is_never_written_after_the_bind(cluster: Cluster) -> None:
    assert cluster.playground is not None
    cluster.playground.faults.add(Fault("delay", "PATCH", "pods/status", delay_s=1.0))
    await cluster.pod("p", 1)
    async with cluster.scheduler():
        await eventually(lambda: cluster.events("FailedScheduling"), bool)
        node = await cluster.node("a")
        await eventually(cluster.bound, lambda bound: bound == {"p": node})
        await stays(lambda: cluster.condition("p"), lambda condition: condition["status"] == "True", for_s=1.5)


async def test_every_pod_of_a_waiting_gang_gets_the_reason(cluster: Cluster) -> None:
    """Also those that come after the reason was first reported."""
    await cluster.node("a")
    await cluster.pod_group("g", 5)
    async with cluster.scheduler():
        for number in range(3):
            await cluster.pod(f"p{number}", 1, schedulingGroup={"podGroupName": "g"})
            await cluster.reported(f"p{number}", "GangIncomplete")
