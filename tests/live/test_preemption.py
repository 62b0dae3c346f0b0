# SPDX-License-Identifier: Apache-2.0
"""Preemption by decisions made by hand: the conditions and events of victims and preemptors, and what is left behind
when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from dovetail.core import cycle
from dovetail.core.decisions import Decision, Evict, Unnominate
from dovetail.core.events import Event, EvictionFailed
from dovetail.core.state import State
from dovetail.playground.faults import Fault
from dovetail.scheduler import driver, evictor
from tests.live.conftest import NAMESPACE, Cluster, Document, eventually, stays
from tests.patience import PATIENCE_S

WITH_FAULTS = pytest.mark.parametrize("cluster", ["playground"], indirect=True)
KEPT = {"finalizers": ["dovetail.dev/test"]}
"""So that a pod can still be read after it has ended."""


class Hand:
    """Decides beside the core: the next step returns the decisions in `next`. `told` are all events."""

    def __init__(self) -> None:
        self.next: list[Decision] = []
        self.reported: list[Event] = []
        self.step = cycle.step

    def __call__(self, state: State, events: Iterable[Event], now_ms: int) -> list[Decision]:
        events = list(events)
        self.reported += events
        decisions = self.step(state, events, now_ms)
        decisions += self.next
        self.next = []
        return decisions

    def failed(self) -> list[EvictionFailed]:
        return [event for event in self.reported if isinstance(event, EvictionFailed)]


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    hand = Hand()
    monkeypatch.setattr(cycle, "step", hand)
    monkeypatch.setattr(evictor, "_PATIENCE_S", 1.0)
    # What is decided by hand waits for the next step.
    monkeypatch.setattr(driver, "_LONGEST_WAIT_S", 0.2)
    return hand


class Stage:
    """A node with two pods of four GPUs, and a third that waits for eight."""

    def __init__(self, cluster: Cluster, hand: Hand) -> None:
        self.cluster = cluster
        self.hand = hand
        self.node = ""
        self.uids: dict[str, str] = {}

    async def prepare(self, **metadata: Any) -> None:
        self.node = await self.cluster.node("a")
        for name, gpus in (("v0", 4), ("v1", 4), ("big", 8)):
            document = self.cluster.pod_document(name, gpus, labels={"app": name})
            if gpus == 4:
                document["metadata"] |= metadata
            pod = await self.cluster.create(self.cluster.pods_path(), document)
            self.uids[name] = pod["metadata"]["uid"]
            if gpus == 4:
                await eventually(self.cluster.bound, lambda bound, name=name: name in bound)
        await self.cluster.reported("big", "NoNodeFits")

    def evict(self, *names: str) -> None:
        lost = 90 * 60_000 * 1_000
        uids = tuple(self.uids[name] for name in names)
        message = "queue red takes back what is due to it"
        self.hand.next.append(Evict("", uids, "reclaim", ((self.uids["big"], self.node),), lost, message, 7))

    def unnominate(self) -> None:
        self.hand.next.append(Unnominate("", (self.uids["big"],), "somebody has to stay", 8))

    async def pod(self, name: str) -> Document:
        return await self.cluster.get(self.cluster.pods_path(name))

    async def nominated(self) -> str:
        return str((await self.pod("big"))["status"].get("nominatedNodeName", ""))

    async def target(self, name: str) -> Document:
        """The condition DisruptionTarget."""
        found = [c for c in (await self.pod(name))["status"].get("conditions", []) if c["type"] == "DisruptionTarget"]
        return found[0] if found else {}

    async def let_go(self, *names: str) -> None:
        """What kubelets would do."""
        for name in names:
            await self.cluster.patch(self.cluster.pods_path(name), {"metadata": {"finalizers": None}})
            await self.cluster.delete(self.cluster.pods_path(name))


@pytest.fixture
def stage(cluster: Cluster, hand: Hand) -> Stage:
    return Stage(cluster, hand)


async def test_victims_name_the_preemptor_which_gets_their_room(stage: Stage) -> None:
    cluster = stage.cluster
    async with cluster.scheduler():
        await stage.prepare(**KEPT)
        stage.evict("v0", "v1")
        assert await eventually(stage.nominated, bool) == stage.node
        for name in ("v0", "v1"):
            condition = await eventually(
                lambda name=name: stage.target(name), lambda c: c.get("reason") == "PreemptionByScheduler"
            )
            assert condition["status"] == "True"
            assert condition["message"].startswith("queue red takes back what is due to it")
            assert (await stage.pod(name))["metadata"]["deletionTimestamp"]
        assert cluster.name not in await cluster.bound()
        events = await eventually(lambda: cluster.events("Preempted"), lambda events: len(events) == 2)
        assert {event["regarding"]["name"] for event in events} == {"v0", "v1"}
        assert {event["related"]["name"] for event in events} == {"big"}
        assert "2 pods are evicted; 90.0 GPU-minutes of work are lost" in events[0]["note"]
        waiting = (await eventually(lambda: cluster.events("WaitingForEvictions"), bool))[0]
        assert waiting["regarding"]["name"] == "big" and stage.node in waiting["note"]
        ids = {event["metadata"]["annotations"]["dovetail.dev/decision"] for event in [*events, waiting]}
        assert len(ids) == 1 and ids.pop().endswith("-7")

        await stage.let_go("v0", "v1")
        await eventually(cluster.bound, lambda bound: bound.keys() == {"big"})
        await eventually(stage.nominated, lambda node: not node)


async def test_a_nomination_that_is_dropped_is_cleared(stage: Stage) -> None:
    async with stage.cluster.scheduler():
        await stage.prepare(**KEPT)
        stage.evict("v0")
        await eventually(stage.nominated, bool)
        stage.unnominate()
        await eventually(stage.nominated, lambda node: not node)
        dropped = await eventually(lambda: stage.cluster.events("PreemptionGivenUp"), bool)
        assert dropped[0]["note"] == "somebody has to stay"


async def test_a_restart_clears_what_it_nominated_and_leaves_what_others_did(stage: Stage) -> None:
    """The scheduler ends between the eviction and the bind."""
    cluster = stage.cluster
    async with cluster.scheduler():
        await stage.prepare(**KEPT)
        await cluster.pod("other", 8)
        await cluster.reported("other", "NoNodeFits")
        stage.evict("v0", "v1")
        await eventually(stage.nominated, bool)
        await eventually(lambda: stage.target("v1"), bool)
    status = {"status": {"nominatedNodeName": stage.node}}
    await cluster.patch(cluster.pods_path("other") + "/status", status)
    async with cluster.scheduler():
        await eventually(stage.nominated, lambda node: not node)
        assert (await stage.pod("other"))["status"]["nominatedNodeName"] == stage.node
        await cluster.delete(cluster.pods_path("other"))
        await stage.let_go("v0", "v1")
        await eventually(cluster.bound, lambda bound: bound.keys() == {"big"})


async def test_a_budget_keeps_all_of_them(stage: Stage) -> None:
    cluster = stage.cluster
    async with cluster.scheduler():
        await stage.prepare()
        await cluster.create(
            f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets",
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "b"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "v1"}}},
            },
        )
        # Budgets are about pods that run.
        for name in ("v0", "v1"):
            running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            await cluster.patch(cluster.pods_path(name) + "/status", {"status": running})
        stage.evict("v0", "v1")
        await eventually(lambda: _later(stage.hand.failed()), bool)
        failed = stage.hand.failed()
        assert [event.uid for event in failed] == [stage.uids["v1"]]
        assert "disruption budget" in failed[0].message
        for name in ("v0", "v1"):
            assert "deletionTimestamp" not in (await stage.pod(name))["metadata"]
            assert not await stage.target(name)


@WITH_FAULTS
async def test_a_server_that_fails_between_the_evictions_and_the_bind_delays_it(stage: Stage) -> None:
    cluster, playground = stage.cluster, stage.cluster.playground
    assert playground is not None
    async with cluster.scheduler():
        await stage.prepare()
        playground.faults.add(Fault("answer", "POST", "pods/eviction", "v0", status=500, times=2))
        playground.faults.add(Fault("drop-after", "POST", "pods/eviction", "v1"))
        playground.faults.add(Fault("drop-before", "PATCH", "pods/status", "big"))
        playground.faults.add(Fault("answer", "POST", "pods/binding", "big", status=500, times=2))
        stage.evict("v0", "v1")
        await eventually(cluster.bound, lambda bound: bound.keys() == {"big"})
        await eventually(stage.nominated, lambda node: not node)
        assert not stage.hand.failed()


@WITH_FAULTS
async def test_a_victim_that_has_just_gone_is_no_failure(stage: Stage) -> None:
    cluster, playground = stage.cluster, stage.cluster.playground
    assert playground is not None
    async with cluster.scheduler():
        await stage.prepare()
        playground.faults.watches_flow.clear()
        await cluster.delete(cluster.pods_path("v0"))
        stage.evict("v0", "v1")
        await eventually(lambda: cluster.events("Preempted"), bool)
        playground.faults.watches_flow.set()
        await eventually(cluster.bound, lambda bound: bound.keys() == {"big"})
        assert [event["regarding"]["name"] for event in await cluster.events("Preempted")] == ["v1"]
        assert not stage.hand.failed()


@pytest.mark.slow
@WITH_FAULTS
async def test_a_lease_that_is_lost_between_two_evictions_ends_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other pods go on, and the next leader clears the nominations."""
    cluster, playground = stage.cluster, stage.cluster.playground
    assert playground is not None
    monkeypatch.setattr(evictor, "_PATIENCE_S", 60.0)
    await cluster.namespace_exists(NAMESPACE)
    async with cluster.scheduler(leader_elect=True, identity="one") as task:
        await stage.prepare(**KEPT)
        # Both have agreed, one has gone: the other is refused for as long as it takes.
        evictions = playground.faults
        evictions.add(Fault("delay", "POST", "pods/eviction", "v1"))
        evictions.add(Fault("answer", "POST", "pods/eviction", "v1", status=429, times=10_000))
        stage.evict("v0", "v1")
        await eventually(lambda: stage.target("v0"), bool)
        assert await stage.nominated() == stage.node
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/dovetail-scheduler"
        await cluster.patch(path, {"spec": {"holderIdentity": "thief", "leaseTransitions": 9}})
        done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
        assert done
        evictions.clear()
        await stays(lambda: stage.target("v1"), lambda condition: not condition, for_s=1.0)
        assert await stage.nominated() == stage.node, "nothing is written without the lease"
    async with cluster.scheduler():
        await eventually(stage.nominated, lambda node: not node)


@WITH_FAULTS
async def test_a_victim_that_was_made_again_under_its_name_is_left_alone(stage: Stage) -> None:
    cluster, playground = stage.cluster, stage.cluster.playground
    assert playground is not None
    async with cluster.scheduler():
        await stage.prepare()
        # The scheduler does not hear of it before it asks.
        playground.faults.watches_flow.clear()
        await cluster.delete(cluster.pods_path("v0"))
        again = await cluster.create(
            cluster.pods_path(), cluster.pod_document("v0", 4, labels={"app": "v0"}, nodeName=stage.node)
        )
        stage.evict("v0")
        stage.hand.reported.clear()
        await stays(lambda: stage.pod("v0"), lambda pod: "deletionTimestamp" not in pod["metadata"])
        playground.faults.watches_flow.set()
        await stays(lambda: stage.pod("v0"), lambda pod: "deletionTimestamp" not in pod["metadata"])
        assert (await stage.pod("v0"))["metadata"]["uid"] == again["metadata"]["uid"]
        assert not stage.hand.failed()


async def _later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value
