# SPDX-License-Identifier: Apache-2.0
"""What the status of a control plane has, and what its heartbeat in it means."""

from __future__ import annotations

import asyncio

import pytest

from dovetail.kube.objects.base import milli_time_text
from dovetail.playground.faults import Fault
from dovetail.scheduler import plane_status
from dovetail.scheduler.clock import Clock
from tests.scheduler.leased import PLANES, LeasedCluster

pytestmark = pytest.mark.usefixtures("no_waits")


def ready(cluster: LeasedCluster, agent: str) -> tuple[str, str]:
    """The phase, and the message of the condition."""
    status = cluster.plane_status(agent)
    message = status["conditions"][0].get("message", "") if status else ""
    return status.get("phase", ""), message


async def test_each_phase_is_reported_with_its_reason() -> None:
    async with LeasedCluster.opened("one", "two") as cluster, cluster.scheduler():
        await cluster.until(lambda: ready(cluster, "one") == ("Ready", ""))
        cluster.plane("two", queue="nowhere")
        await cluster.until(lambda: ready(cluster, "two")[0] == "Invalid")
        assert "the queue 'nowhere' does not exist or takes no control planes" in ready(cluster, "two")[1]
        cluster.plane("one", weight=0)
        cluster.plane("one", heartbeat="1s")
        await cluster.until(lambda: ready(cluster, "one") == ("Silent", "no heartbeat for 3 s"))
        cluster.beat("one")
        await cluster.until(lambda: ready(cluster, "one")[0] == "Ready")
        second = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "AgentControlPlane"}
        meta = {"name": "second", "namespace": "one"}
        cluster.playground.put(second | {"metadata": meta, "spec": {"queue": "agents"}})

        def ignored() -> bool:
            found = cluster.playground.store.get(PLANES, "one", "second") or {}
            return bool(found.get("status", {}).get("phase") == "Ignored")

        await cluster.until(ignored)


async def test_a_heartbeat_is_acknowledged_after_all_that_was_decided_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the agent's clock shows: its own time comes back."""
    monkeypatch.setattr(plane_status, "_HEARD_MS", 0)
    async with LeasedCluster.opened("one") as cluster, cluster.scheduler():
        begun_ms = Clock().now_ms()
        at = cluster.beat("one", begun_ms - 7_200_000)
        await cluster.until(lambda: cluster.plane_status("one").get("lastHeartbeat"))
        assert cluster.plane_status("one")["renewTime"][:23] == at[:23]
        assert cluster.plane_status("one")["lastHeartbeat"] >= milli_time_text(begun_ms)
        cluster.playground.faults.add(Fault("delay", "POST", "gpuleases", times=1, delay_s=2.5))
        cluster.ask("one", "train", {"duration": "1h"}, firm=True)
        await asyncio.sleep(0.2)
        at = cluster.beat("one")
        await cluster.until(lambda: cluster.plane_status("one")["renewTime"][:23] == at[:23])
        assert cluster.state("one", "train") == "Active"


async def test_with_a_short_grace_each_heartbeat_counts_and_without_leases_few_are_written() -> None:
    async with LeasedCluster.opened("one", "two", grace="4s") as cluster, cluster.scheduler():
        await cluster.lease_of("one", "train", {"duration": "1h"})
        written: dict[str, set[str]] = {"one": set(), "two": set()}
        for _ in range(12):
            for agent in written:
                cluster.beat(agent)
            await asyncio.sleep(0.5)
            for agent, times in written.items():
                times.add(cluster.plane_status(agent).get("renewTime", ""))
        assert len(written["one"] - {""}) >= 3
        assert len(written["two"] - {""}) == 1


async def test_the_first_heartbeat_of_each_process_is_acknowledged() -> None:
    async with LeasedCluster.opened("one") as cluster, cluster.scheduler():
        for process in ("a", "b", "a"):
            at = cluster.beat("one", holder=process)
            await cluster.until(lambda at=at: cluster.plane_status("one").get("renewTime", "")[:23] == at[:23])


async def test_usage_goes_on_after_a_restart() -> None:
    async with LeasedCluster.opened("one") as cluster:
        async with cluster.scheduler():
            await cluster.lease_of("one", "train", {"count": 8, "perNode": 8, "duration": "1h"})
            await asyncio.sleep(1.0)
            cluster.act("one", "train", 1, "return")
            await cluster.until(lambda: not cluster.lease("one", "train"))
            await cluster.until(lambda: cluster.plane_status("one")["leases"] == 0)
        used = int(cluster.plane_status("one")["usage"]["used"])
        assert used > 0
        async with cluster.scheduler():
            before = cluster.plane_status("one")["usage"]["asOf"]
            await cluster.lease_of("one", "next", {"duration": "1h"})
            await cluster.until(lambda: cluster.plane_status("one")["usage"]["asOf"] != before)
            assert int(cluster.plane_status("one")["usage"]["used"]) > 0.99 * used
