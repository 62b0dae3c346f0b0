# SPDX-License-Identifier: Apache-2.0
"""Queues from the object to its status: borrowing, taking back, and a history that outlives the scheduler."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime
from typing import Any

import pytest

from dovetail.playground.faults import Fault
from dovetail.scheduler import driver
from tests.live.conftest import NAMESPACE, Cluster, Document, eventually, stays

WITH_FAULTS = pytest.mark.parametrize("cluster", ["playground"], indirect=True)
KEPT = {"finalizers": ["dovetail.dev/test"]}
"""So that a pod can still be read after it has ended."""
QUEUES = "/apis/dovetail.dev/v1alpha1/queues"
HALF_LIFE_MS = 7 * 86_400_000


@pytest.fixture(autouse=True)
def short_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_LONGEST_WAIT_S", 0.2)


class Teams:
    """Two queues that are guaranteed a node each."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def name(self, team: str) -> str:
        return f"{self.cluster.name}-{team}"

    async def prepare(self, **spec: Any) -> None:
        for node in ("a", "b"):
            await self.cluster.node(node)
        for team in ("red", "blue"):
            await self.cluster.create(
                QUEUES,
                {
                    "apiVersion": "dovetail.dev/v1alpha1",
                    "kind": "Queue",
                    "metadata": {"name": self.name(team)},
                    "spec": {"guarantee": {"gpu": "8"}} | spec,
                },
            )

    async def pod(self, team: str, name: str, gpus: int, **spec: Any) -> Document:
        document = self.cluster.pod_document(name, gpus, labels={"dovetail.dev/queue": self.name(team)}, **spec)
        document["metadata"] |= KEPT
        return await self.cluster.create(self.cluster.pods_path(), document)

    async def status(self, team: str) -> Document:
        return dict((await self.cluster.get(f"{QUEUES}/{self.name(team)}")).get("status", {}))

    async def ending(self) -> dict[str, str]:
        """By pod the reason of the condition DisruptionTarget."""
        pods = (await self.cluster.get(self.cluster.pods_path()))["items"]
        found = {}
        for pod in pods:
            reasons = [c["reason"] for c in pod["status"].get("conditions", []) if c["type"] == "DisruptionTarget"]
            if "deletionTimestamp" in pod["metadata"]:
                found[pod["metadata"]["name"]] = reasons[0] if reasons else ""
        return found

    async def let_go(self, *names: str) -> None:
        """What kubelets would do."""
        for name in names:
            await self.cluster.patch(self.cluster.pods_path(name), {"metadata": {"finalizers": None}})
            await self.cluster.delete(self.cluster.pods_path(name))

    async def nominated(self) -> dict[str, str]:
        pods = (await self.cluster.get(self.cluster.pods_path()))["items"]
        found = {pod["metadata"]["name"]: pod["status"].get("nominatedNodeName", "") for pod in pods}
        return {name: node for name, node in found.items() if node}

    async def clean_up(self) -> None:
        await self.let_go(
            *[pod["metadata"]["name"] for pod in (await self.cluster.get(self.cluster.pods_path()))["items"]]
        )
        for team in ("red", "blue"):
            await self.cluster.delete(f"{QUEUES}/{self.name(team)}")


@pytest.fixture
async def teams(cluster: Cluster) -> Any:
    teams = Teams(cluster)
    yield teams
    await teams.clean_up()


async def test_a_gang_reclaims_its_guarantee_from_a_queue_that_borrowed_everything(teams: Teams) -> None:
    cluster = teams.cluster
    await teams.prepare()
    async with cluster.scheduler():
        for number in range(4):
            await teams.pod("blue", f"b{number}", 4)
        await eventually(cluster.bound, lambda bound: len(bound) == 4)
        status = await eventually(lambda: teams.status("blue"), lambda status: status.get("borrowed"))
        assert (status["allocated"]["gpu"], status["borrowed"]["gpu"]) == ("16", "8")
        assert status["conditions"][0]["status"] == "True"

        await cluster.pod_group("g", 2)
        for number in range(2):
            await teams.pod("red", f"r{number}", 4, schedulingGroup={"podGroupName": "g"})
        ending = await eventually(teams.ending, lambda found: list(found.values()) == ["PreemptionByScheduler"] * 2)
        assert all(name.startswith("b") for name in ending)
        assert (await eventually(teams.nominated, bool)).keys() == {"r0", "r1"}
        group = await eventually(
            lambda: cluster.group("g"),
            lambda group: any("WaitingForEvictions" in c["message"] for c in group["status"].get("conditions", [])),
        )
        assert group["status"]["conditions"][0]["status"] == "False"
        waiting = await eventually(lambda: teams.status("red"), lambda status: status.get("pendingJobs") == 1)
        assert waiting["head"]["name"] == f"{cluster.namespace}/g"

        await teams.let_go(*ending)
        bound = await eventually(cluster.bound, lambda bound: {"r0", "r1"} <= bound.keys())
        assert len(bound) == 4
        assert not await teams.nominated()
        red = await eventually(lambda: teams.status("red"), lambda status: status["allocated"].get("gpu") == "8")
        blue = await eventually(lambda: teams.status("blue"), lambda status: status["allocated"].get("gpu") == "8")
        assert "gpu" not in red["borrowed"] and "gpu" not in blue["borrowed"]
        assert red["pendingJobs"] == 0 and "head" not in red
        reasons = {e["reason"]: e["metadata"]["annotations"]["dovetail.dev/decision"] for e in await decided(cluster)}
        assert reasons["Preempted"] == reasons["WaitingForEvictions"]


async def test_a_pod_with_a_budget_stays_and_the_waiting_pod_gets_the_reason(teams: Teams) -> None:
    cluster = teams.cluster
    await teams.prepare()
    await cluster.create(
        f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets",
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "b"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"dovetail.dev/queue": teams.name("blue")}}},
        },
    )
    async with cluster.scheduler():
        for number in range(4):
            await teams.pod("blue", f"b{number}", 4)
        await eventually(cluster.bound, lambda bound: len(bound) == 4)
        await teams.pod("red", "r0", 8)
        message = await cluster.reported("r0", "NoNodeFits")
        assert "Preemption:" in message and "No start is known:" in message
        await stays(teams.ending, lambda ending: not ending)
        assert not await teams.nominated()


async def decided(cluster: Cluster) -> list[Document]:
    """The events that carry the id of a decision."""
    items = (await cluster.get(f"/apis/events.k8s.io/v1/namespaces/{cluster.namespace}/events"))["items"]
    return [event for event in items if event["metadata"].get("annotations")]


def used_at(status: Document, moment_ms: float) -> float:
    """What by a status the queue will have used by then, if nothing of it starts or ends."""
    usage = status["usage"]
    past_ms = moment_ms - as_of_ms(status)
    left = 0.5 ** (past_ms / HALF_LIFE_MS)
    return int(usage["used"]) * left + int(usage["rate"]) * (1 - left) * HALF_LIFE_MS / math.log(2)


def as_of_ms(status: Document) -> float:
    return datetime.fromisoformat(status["usage"]["asOf"]).timestamp() * 1000


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stopped in order", "killed"])
async def test_a_history_goes_on_where_the_last_scheduler_left_it(
    teams: Teams, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = teams.cluster
    await teams.prepare()
    await cluster.namespace_exists(NAMESPACE)
    async with cluster.scheduler(leader_elect=True, identity="one"):
        await teams.pod("blue", "b0", 8)
        await eventually(cluster.bound, bool)
        before = await eventually(
            lambda: teams.status("blue"), lambda status: status.get("usage", {}).get("rate") == "8000"
        )
        await asyncio.sleep(1.5)
        if end == "killed":
            monkeypatch.setattr("dovetail.scheduler.queue_status._LAST_S", 0.0)
    last = await teams.status("blue")
    assert (as_of_ms(last) > as_of_ms(before)) is (end == "stopped in order")
    assert math.isclose(int(last["usage"]["used"]), used_at(before, as_of_ms(last)), rel_tol=1e-6)
    await asyncio.sleep(1.0)
    async with cluster.scheduler():
        after = await eventually(lambda: teams.status("blue"), lambda status: as_of_ms(status) > as_of_ms(last))
    assert after["usage"]["rate"] == "8000"
    assert int(after["usage"]["used"]) > int(last["usage"]["used"]) > 0
    assert math.isclose(int(after["usage"]["used"]), used_at(before, as_of_ms(after)), rel_tol=1e-6)


@pytest.mark.slow
@WITH_FAULTS
async def test_a_status_that_is_refused_is_written_later(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = teams.cluster
    assert cluster.playground is not None
    monkeypatch.setattr("dovetail.scheduler.queue_status._REFUSED_RETRY_MS", 100)
    cluster.playground.faults.add(Fault("answer", "PATCH", "queues/status", teams.name("red"), status=403, times=2))
    await teams.prepare()
    async with cluster.scheduler():
        await eventually(lambda: teams.status("red"), bool)


@pytest.mark.slow
async def test_a_quiet_cluster_is_not_written_to(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows from the bind is written first: that the other queue's due share is another, too."""
    monkeypatch.setattr("dovetail.scheduler.queue_status._DRIFT_MS", 200)
    cluster = teams.cluster
    await teams.prepare()

    async def versions() -> list[str]:
        queues = await asyncio.gather(*(cluster.get(f"{QUEUES}/{teams.name(t)}") for t in ("red", "blue")))
        return [queue["metadata"]["resourceVersion"] for queue in queues]

    async with cluster.scheduler():
        await teams.pod("blue", "b0", 8)
        await eventually(lambda: teams.status("blue"), lambda status: status.get("allocated", {}).get("gpu") == "8")
        seen = list[list[str]]()

        async def one_second_later() -> bool:
            await asyncio.sleep(1.0)
            seen.append(await versions())
            return len(seen) > 1 and seen[-1] == seen[-2]

        await eventually(one_second_later, bool)
        await stays(versions, lambda found: found == seen[-1], for_s=3.0)


async def test_a_queue_made_again_under_its_name_starts_without_usage(teams: Teams) -> None:
    cluster = teams.cluster
    await teams.prepare()
    async with cluster.scheduler():
        await teams.pod("blue", "b0", 8)
        await eventually(lambda: teams.status("blue"), lambda status: status.get("usage", {}).get("rate") == "8000")
        await cluster.delete(f"{QUEUES}/{teams.name('blue')}")
        await cluster.create(
            QUEUES,
            {
                "apiVersion": "dovetail.dev/v1alpha1",
                "kind": "Queue",
                "metadata": {"name": teams.name("blue")},
                "spec": {},
            },
        )
        status = await eventually(lambda: teams.status("blue"), bool)
        assert status["allocated"]["gpu"] == "8" and "guaranteed" in status
        assert not status["guaranteed"]
