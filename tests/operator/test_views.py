# SPDX-License-Identifier: Apache-2.0
"""The API of a scheduler's views: what the scheduler writes into it stays, and it goes before the pods that answer."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from benchmarks import virtual_time
from benchmarks.virtual_time import VirtualClock
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.operator.metrics import WRITES
from dovetail.operator.rendering.stack_objects import ORDER, desired
from dovetail.playground import Playground
from dovetail.scheduler.view_registration import API_SERVICE, register
from tests.operator.stack_world import STACKS, World

SYSTEM = "dovetail-system"
APIS, DEPLOYMENTS = "apiservices.apiregistration.k8s.io", "deployments.apps"
SLICES = "endpointslices.discovery.k8s.io"
_EVERY_S, _HOURS = 30, 24


def writes() -> float:
    """The operator's requests that wrote an object of a stack."""
    samples = [one for metric in WRITES.collect() for one in metric.samples if one.name.endswith("_total")]
    return sum(one.value for one in samples if one.labels["kind"] in ORDER)


def registered(world: World) -> tuple[str, str]:
    """The address and the certificate that the scheduler has written."""
    api, addresses = world.get(APIS, "", API_SERVICE), world.get(SLICES, SYSTEM, "dovetail-views-ipv4")
    assert api is not None and addresses is not None
    return addresses["endpoints"][0]["addresses"][0], base64.b64decode(api["spec"]["caBundle"]).decode()


@pytest.mark.slow
def test_for_a_day_the_operator_writes_nothing_while_schedulers_register() -> None:
    async def day(clock: VirtualClock) -> None:
        world = World(Playground(clock=clock.time))
        await world.playground.start()
        async with (
            world.operator(desired),
            Client(ClusterConfig(server=world.playground.url), user_agent="dovetail-scheduler") as scheduler,
        ):
            world.stack()
            await world.applied()
            await asyncio.sleep(60)
            count, began_s = writes(), clock.elapsed_s
            for number in range(_HOURS * 3600 // _EVERY_S):
                leader = ("10.0.0.1", "ONE") if number < _HOURS * 1800 // _EVERY_S else ("10.0.0.2", "TWO")
                await register(scheduler, SYSTEM, leader[0], 10352, leader[1])
                await asyncio.sleep(_EVERY_S)
                assert registered(world) == leader
            assert clock.elapsed_s - began_s == pytest.approx(_HOURS * 3600, rel=0.01)
            assert writes() == count
            assert world.condition("Applied") == ("True", "Applied", "")
        async with world.operator(desired):
            await asyncio.sleep(60)
            assert writes() == count and registered(world) == ("10.0.0.2", "TWO")
        await world.playground.stop()

    virtual_time.run(day)


async def test_what_others_change_beside_it_is_restored_and_what_the_scheduler_wrote_stays(world: World) -> None:
    def priority() -> Any:
        return (world.get(APIS, "", API_SERVICE) or {"spec": {}})["spec"].get("groupPriorityMinimum")

    world.stack()
    async with (
        world.operator(desired),
        Client(ClusterConfig(server=world.playground.url), user_agent="dovetail-scheduler") as scheduler,
    ):
        await world.applied()
        await register(scheduler, SYSTEM, "10.0.0.1", 10352, "ONE")
        await scheduler.fetch(
            "PATCH", f"/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}",
            {"spec": {"groupPriorityMinimum": 1}}, content_type="application/merge-patch+json",
        )  # fmt: skip
        assert priority() == 1
        await world.until(lambda: priority() == 1000)
        world.stack(metrics={"dashboards": False})
        await world.applied()
        assert registered(world) == ("10.0.0.1", "ONE")


def ends(world: World) -> list[str]:
    """A list that gets the collection of each object that is gone from now on."""
    found: list[str] = []
    for collection in world.playground.store.collections:

        def note(change: Any, name: str = collection.name) -> None:
            if change.removed:
                found.append(name)

        collection.listeners.append(note)
    return found


@pytest.mark.parametrize("way", ["uninstalled", "views off", "scheduler off"])
async def test_the_api_goes_before_the_pods_that_answer_and_their_address(world: World, way: str) -> None:
    world.stack()
    async with world.operator(desired):
        await world.applied()
        gone = ends(world)
        if way == "uninstalled":
            world.playground.delete(STACKS, "", "gpus")
        else:
            world.stack(scheduler={"views": False} if way == "views off" else {"enabled": False})
        await world.until(lambda: "services" in gone and "clusterroles.rbac.authorization.k8s.io" in gone)
    assert gone.count(APIS) == 1 and (DEPLOYMENTS in gone) == (way != "views off")
    others = {DEPLOYMENTS, SLICES, "services", "clusterroles.rbac.authorization.k8s.io"}
    assert not others & {*gone[: gone.index(APIS)]}
