# SPDX-License-Identifier: Apache-2.0
"""Agents on a cluster under random faults: lost and refused calls, cut and lagging watches, schedulers that are killed.
The API server's own objects are the oracle at every moment."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from random import Random

import pytest

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.plane import AgentRequest, KubernetesBroker, NotGranted, Option, Plane, PlaneLease, RenewalRefused
from dovetail.plane.broker import BrokerUnavailable
from dovetail.playground.faults import Effect, Fault
from tests.patience import PATIENCE_S
from tests.plane.benches import SECOND
from tests.scheduler.leased import LEASES, REQUESTS, LeasedCluster

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_waits")]
LASTS_S = 15.0
KINDS = ("leaserequests", "gpuleases", "leases", "agentcontrolplanes", "gpuleases/status", "leaserequests/status", "")
EFFECTS: tuple[Effect, ...] = ("answer", "delay", "drop-before", "drop-after")


class Agents:
    """Planes whose agents ask, hold, renew and return at random. `held` has all leases that any of them ever had."""

    def __init__(self, seed: int, cluster: LeasedCluster) -> None:
        self.random = Random(seed)
        self.cluster = cluster
        self.held: list[PlaneLease] = []
        self.granted = self.ended = 0

    async def agent(self, plane: Plane) -> None:
        chance = self.random
        while True:
            option = Option(gpus=chance.randint(1, 8), minutes=chance.randint(4, 9) * SECOND)
            asked = AgentRequest(options=(option,), firm=chance.random() < 0.3, within_minutes=10 * SECOND)
            with suppress(NotGranted, RenewalRefused, BrokerUnavailable):
                async with plane.lease(asked) as lease:
                    self.granted += 1
                    self.held.append(lease)
                    await asyncio.sleep(chance.random() * 6)
                    if chance.random() < 0.5:
                        await lease.renew(4 * SECOND)
            self.ended += 1

    def fault(self) -> None:
        faults, chance = self.cluster.playground.faults, self.random
        act = chance.randrange(12)
        if act == 0:
            faults.break_watches()
        elif act == 1:
            faults.expire_history()
            faults.break_watches()
        elif act == 2:
            faults.lose_events("gpuleases", 1)
        else:
            verb = chance.choice(("GET", "POST", "PATCH", "DELETE", "WATCH"))
            status = chance.choice((409, 410, 429, 500, 503))
            effect, times = chance.choice(EFFECTS), chance.randint(1, 4)
            faults.add(Fault(effect, verb, chance.choice(KINDS), times=times, status=status, delay_s=chance.random()))

    def check(self) -> None:
        """Whatever an agent may use is in the API with that fence, and has an end that has not come. No device has two
        users."""
        used: dict[tuple[str, int], str] = {}
        now_ms = int(1000 * time.time())
        for lease in self.held:
            if not lease.live:
                continue
            found = self.cluster.lease(*lease.id.split("/"))
            assert found and found["spec"]["fence"] == lease.fence, lease
            assert found.get("status", {}).get("state") != "Ended", found
            assert now_ms <= lease.end_ms
            for device in lease.devices:
                assert used.setdefault((device.node, device.gpu), lease.id) == lease.id


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_used_without_a_live_lease_and_nothing_is_left(seed: int) -> None:
    async with LeasedCluster.opened("one", "two", grace="3s", heartbeat="5s") as cluster:
        agents, chance = Agents(seed, cluster), Random(-seed)
        async with Client(ClusterConfig(cluster.playground.url)) as client:
            planes = [Plane(KubernetesBroker(client), f"{name}/{name}", heartbeat_ms=500) for name in ("one", "two")]
            for plane in planes:
                await plane.__aenter__()
            tasks = [asyncio.create_task(agents.agent(plane)) for plane in planes for _ in range(2)]
            until_s = time.monotonic() + LASTS_S
            while time.monotonic() < until_s:
                async with cluster.scheduler():
                    again_s = time.monotonic() + chance.uniform(3, 8)
                    while time.monotonic() < min(until_s, again_s):
                        if chance.random() < 0.05:
                            agents.fault()
                        agents.check()
                        await asyncio.sleep(0.02)
                    if chance.random() < 0.5:
                        # Killed at one of its next writes: to the server that looks the same.
                        faults = cluster.playground.faults
                        faults.cut_off_at_write(chance.randint(1, 5), carried_out=chance.random() < 0.5)
                        with suppress(TimeoutError):
                            await asyncio.wait_for(faults.cut_off.wait(), 3)
                agents.check()
                cluster.playground.faults.clear()
            assert not any(task.done() for task in tasks)
            assert agents.granted > 1 and agents.ended > 1
            cluster.playground.faults.clear()
            async with cluster.scheduler():
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                async with asyncio.timeout(PATIENCE_S):
                    while cluster.playground.store.list(LEASES) or cluster.playground.store.list(REQUESTS):
                        agents.check()
                        await asyncio.sleep(0.05)
                for plane in planes:
                    await plane.__aexit__(None, None, None)
