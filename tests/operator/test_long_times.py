# SPDX-License-Identifier: Apache-2.0
"""What needs hours: nothing is written while nothing changes, and an API server that is away for ten minutes."""

from __future__ import annotations

import asyncio
import logging

import pytest

from benchmarks import virtual_time
from benchmarks.virtual_time import VirtualClock
from dovetail.kube.api.config import ClusterConfig
from dovetail.operator.run import OperatorOptions, run
from dovetail.playground import Playground
from tests.breadth import BREADTH
from tests.operator.stack_world import AGENT_NAMESPACE, World, small

pytestmark = pytest.mark.slow
LEASES = "leases.coordination.k8s.io"


async def _installed(world: World) -> asyncio.Task[None]:
    options = OperatorOptions(listen="", image="dovetail:1")
    running = asyncio.create_task(run(ClusterConfig(server=world.playground.url), options, render=small))
    world.stack()
    while world.condition("Ready")[1] != "Ready":
        assert not running.done(), running.result()
        await asyncio.sleep(1)
    return running


def _world(clock: VirtualClock) -> World:
    playground = Playground(clock=clock.time)
    world = World(playground)
    for number in range(3):
        playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}})
    return world


def test_hours_without_a_change_are_hours_without_a_write() -> None:
    hours = 2 if BREADTH > 1 else 1

    async def quiet(clock: VirtualClock) -> None:
        world = _world(clock)
        await world.playground.start()
        running = await _installed(world)
        await asyncio.sleep(60)
        writes, began_s = virtual_time.writes_of(world.playground.store), clock.elapsed_s
        for _ in range(hours * 12):
            await asyncio.sleep(300)
            for number in range(3):
                node = world.get("nodes", "", f"n{number}")
                assert node is not None
                world.playground.store.put_raw("nodes", node | {"status": {"heartbeat": clock.time()}})
        assert clock.elapsed_s - began_s == pytest.approx(hours * 3600, rel=0.01)
        leases = [one for one in writes if one.startswith(LEASES)]
        heartbeats = [one for one in writes if one.startswith("nodes ")]
        assert [one for one in writes if one not in leases and one not in heartbeats] == []
        assert len(heartbeats) == hours * 36 and len(leases) == pytest.approx(hours * 1800, rel=0.05)
        running.cancel()
        await asyncio.wait([running])
        await world.playground.stop()

    virtual_time.run(quiet)


def test_an_api_server_that_is_away_for_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    async def away(clock: VirtualClock) -> None:
        world = _world(clock)
        await world.playground.start()
        running = await _installed(world)
        await world.playground.faults.go_away()
        world.stack(image={"repository": "dovetail", "tag": "2"})
        await asyncio.sleep(600)
        # The lease cannot be renewed: the process ends, as its Deployment starts a new one.
        assert running.done()
        with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(Exception, match="lease"))):
            running.result()
        again = asyncio.create_task(
            run(
                ClusterConfig(server=world.playground.url), OperatorOptions(listen="", image="dovetail:1"), render=small
            )
        )
        await asyncio.sleep(600)
        assert not again.done()
        await world.playground.faults.come_back()
        back_s = clock.elapsed_s
        await world.applied()
        agent = world.get("daemonsets.apps", AGENT_NAMESPACE, "dovetail-agent")
        assert agent is not None
        assert agent["spec"]["template"]["spec"]["containers"][0]["image"] == "dovetail:2"
        assert clock.elapsed_s - back_s < 60
        again.cancel()
        await asyncio.wait([again])
        await world.playground.stop()

    virtual_time.run(away)
