# SPDX-License-Identifier: Apache-2.0
"""The API of a scheduler's views: it is there while a scheduler answers, what the scheduler writes into it stays, and
it goes before the pods that answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from benchmarks import virtual_time
from benchmarks.virtual_time import VirtualClock
from dovetail.aggregated.registration import ApiObjects
from dovetail.history.collector.run import HISTORY
from dovetail.kube.api import watch
from dovetail.kube.api.reflector import Reflector, ReflectorTimes
from dovetail.operator.rendering.stack_objects import desired
from dovetail.operator.views.state import PAUSE_S, UNANSWERED_S
from dovetail.playground import Fault, Playground
from dovetail.scheduler.view_process import VIEWS
from tests.operator.stack_world import STACKS, World
from tests.operator.views.registered import APIS, SLICES, Views, views, writes

DEPLOYMENTS = "deployments.apps"
LEADER = ("10.0.0.1", "ONE")
_SEEN_S = 65.0
"""What one has written, all others have read."""
_WATCH_S = 900


@pytest.fixture
def long_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches of a quarter of an hour and more, and audits and looks for kinds that are not served as rarely, for tests
    of hours: there are thirty, and in an hour they would begin 3,600 times, which costs more than all else.
    `test_long_times.py` has an hour with watches of half a minute."""
    monkeypatch.setattr(watch, "_LASTS_S", _WATCH_S)
    times = ReflectorTimes(audit_every_s=4 * _WATCH_S, recheck_s=_WATCH_S, heartbeat_s=2 * _WATCH_S + 5.0)
    monkeypatch.setitem(Reflector.__init__.__kwdefaults__, "times", times)


def in_virtual_time(
    work: Callable[[World, Views], Awaitable[None]], objects: ApiObjects = VIEWS, **spec: Any
) -> None:  # fmt: skip
    """Run it on a playground with a GPUStack, whose operator it starts itself."""

    async def run(clock: VirtualClock) -> None:
        # A look each second: each costs a turn of the loop, and some are for a quarter of an hour.
        world = World(Playground(clock=clock.time), every_s=1.0)
        await world.playground.start()
        async with views(world, objects) as found:
            world.stack(**spec)
            await work(world, found)
        await world.playground.stop()

    virtual_time.run(run)


def condition(world: World, kind: str = "ViewsAvailable") -> tuple[str, str]:
    return world.condition(kind)[:2]


@pytest.mark.slow
@pytest.mark.usefixtures("long_watches")
def test_for_an_hour_the_operator_writes_nothing_while_schedulers_register() -> None:
    async def hour(world: World, found: Views) -> None:
        found.leader, found.every_s = LEADER, 300
        async with world.operator(desired):
            await world.applied()
            await asyncio.sleep(10 * _SEEN_S)
            count = writes()
            for leader in (LEADER, ("10.0.0.2", "TWO")):
                found.leader = leader
                await asyncio.sleep(1800)
                assert found.registered == found.leader
                assert condition(world) == ("True", "Answered")
            assert writes() == count
            assert world.condition("Applied") == ("True", "Applied", "")
        async with world.operator(desired):
            await asyncio.sleep(_SEEN_S)
            assert writes() == count and found.registered == ("10.0.0.2", "TWO")

    in_virtual_time(hour)


@pytest.mark.slow
def test_it_is_registered_once_a_scheduler_has_written_its_address() -> None:
    async def work(world: World, found: Views) -> None:
        async with world.operator(desired):
            await world.applied()
            await asyncio.sleep(_SEEN_S)
            assert found.api is None and condition(world) == ("False", "NotRegistered")
            found.leader = LEADER
            await found.look()
            await asyncio.sleep(5)
            assert found.api is not None and condition(world) == ("False", "Registering")
            await asyncio.sleep(_SEEN_S)
            assert found.registered == LEADER and condition(world) == ("True", "Answered")

    in_virtual_time(work)


@pytest.mark.slow
def test_the_api_of_the_history_is_registered_by_its_collector_alone() -> None:
    kind = "HistoryAvailable"

    async def work(world: World, found: Views) -> None:
        async with world.operator(desired):
            await world.applied()
            await asyncio.sleep(_SEEN_S)
            assert found.api is None and condition(world, kind) == ("False", "NotRegistered")
            found.leader = LEADER
            await found.look()
            await asyncio.sleep(2 * _SEEN_S)
            assert found.registered == LEADER and condition(world, kind) == ("True", "Answered")
            assert condition(world) == ("False", "NotRegistered")
            world.stack(history={"enabled": False})
            await asyncio.sleep(_SEEN_S)
            assert found.api is None and condition(world, kind) == ("", "")

    in_virtual_time(work, HISTORY, history={"enabled": True})


@pytest.mark.slow
@pytest.mark.usefixtures("long_watches")
def test_it_goes_when_nobody_answers_and_comes_back_with_the_next_scheduler() -> None:
    async def work(world: World, found: Views) -> None:
        found.leader = LEADER
        async with world.operator(desired):
            await world.applied()
            await asyncio.sleep(2 * _SEEN_S)
            assert condition(world) == ("True", "Answered")
            found.leader = None
            await asyncio.sleep(UNANSWERED_S - 5)
            assert found.api is not None and condition(world) == ("True", "Answered")
            await asyncio.sleep(_SEEN_S)
            assert found.api is None and found.addresses == []
            assert world.condition("ViewsAvailable") == (
                "False", "NotAnswered", "nothing answered the API server for 3 minutes (FailedDiscoveryCheck: "
                "connection refused), so the API was removed; it comes back after a pause, once a scheduler has "
                "registered",
            )  # fmt: skip
            assert world.condition("Applied") == ("True", "Applied", "")
            count = writes()
            await asyncio.sleep(3600)
            assert writes() == count and found.api is None
            found.leader = ("10.0.0.2", "TWO")
            await found.look()
            await asyncio.sleep(5)
            assert found.api is not None
            await asyncio.sleep(_SEEN_S)
            assert found.registered == found.leader and condition(world) == ("True", "Answered")

    in_virtual_time(work)


@pytest.mark.slow
@pytest.mark.usefixtures("long_watches")
def test_a_leader_that_the_api_server_does_not_reach_costs_a_few_writes_an_hour() -> None:
    async def work(world: World, found: Views) -> None:
        found.leader, found.reached = LEADER, False
        store, hours = world.playground.store, []
        async with world.operator(desired):
            await world.applied()
            written = virtual_time.writes_of(store)
            for _ in range(3):
                before = len(written)
                await asyncio.sleep(3600)
                hours.append(len(written) - before)
            assert condition(world)[0] == "False"
            # By all: address, API, certificate, its availability and the status, each time that it is tried.
            assert hours[0] <= 60 and hours[2] <= 15, hours
            found.reached = True
            await asyncio.sleep(3700)
            assert condition(world) == ("True", "Answered")

    in_virtual_time(work)


@pytest.mark.slow
def test_a_change_of_the_stack_ends_the_pause_and_a_restart_of_the_operator_begins_it() -> None:
    async def work(world: World, found: Views) -> None:
        found.leader, found.reached = LEADER, False
        async with world.operator(desired):
            await world.until(lambda: condition(world) == ("False", "NotAnswered"), within_s=900)
        async with world.operator(desired):
            await asyncio.sleep(PAUSE_S - 5)
            assert found.addresses and found.api is None and condition(world) == ("False", "NotAnswered")
            # It may wait for the lease of the one before first.
            await world.until(lambda: found.api is not None, within_s=300)
            await world.until(lambda: condition(world) == ("False", "NotAnswered"), within_s=900)
            await asyncio.sleep(35)
            assert found.addresses and found.api is None
            found.reached = True
            world.stack(metrics={"dashboards": False})
            await asyncio.sleep(5)
            assert found.api is not None

    in_virtual_time(work)


@pytest.mark.slow
def test_a_kill_between_the_addresses_and_the_api_leaves_what_the_next_operator_goes_on_from() -> None:
    async def work(world: World, found: Views) -> None:
        found.leader = LEADER
        async with world.operator(desired):
            await world.applied()
            await asyncio.sleep(_SEEN_S)
            found.leader = None
            world.playground.faults.add(Fault("answer", "DELETE", "apiservices", status=500, times=1000))
            await world.until(lambda: found.addresses == [], within_s=900)
        assert found.api is not None
        world.playground.faults.clear()
        async with world.operator(desired):
            await world.until(lambda: found.api is None)

    in_virtual_time(work)


@pytest.mark.slow
def test_it_goes_also_while_the_spec_contradicts_itself() -> None:
    async def work(world: World, found: Views) -> None:
        found.leader = LEADER
        async with world.operator(desired):
            await world.applied()
            await asyncio.sleep(_SEEN_S)
            world.stack(driver={"mode": "Container"})
            await world.until(lambda: world.condition("Accepted")[1] == "Contradiction")
            found.leader = None
            await world.until(lambda: found.api is None, within_s=900)
            assert condition(world) == ("False", "NotAnswered")

    in_virtual_time(work)


@pytest.mark.slow
async def test_what_others_change_beside_it_is_restored_and_what_the_scheduler_wrote_stays(world: World) -> None:
    async with world.operator(desired), views(world) as found:

        def priority() -> Any:
            return (found.api or {"spec": {}})["spec"].get("groupPriorityMinimum")

        world.stack()
        await world.applied()
        found.leader = LEADER
        await found.look()
        await world.until(lambda: found.api is not None)
        await found.look()
        assert found.api is not None
        world.playground.store.put_raw(APIS, found.api | {"spec": found.api["spec"] | {"groupPriorityMinimum": 1}})
        assert priority() == 1
        await world.until(lambda: priority() == 1000)
        world.stack(metrics={"dashboards": False})
        await world.applied()
        assert found.registered == LEADER


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
@pytest.mark.slow
async def test_the_api_goes_before_the_pods_that_answer_and_their_address(world: World, way: str) -> None:
    world.stack()
    async with world.operator(desired), views(world) as found:
        await world.applied()
        found.leader = LEADER
        await found.look()
        await world.until(lambda: found.api is not None)
        gone = ends(world)
        if way == "uninstalled":
            world.playground.delete(STACKS, "", "gpus")
        else:
            world.stack(scheduler={"views": False} if way == "views off" else {"enabled": False})
        await world.until(lambda: "services" in gone and "networkpolicies.networking.k8s.io" in gone)
    assert gone.count(APIS) == 1 and (DEPLOYMENTS in gone) == (way != "views off")
    others = {DEPLOYMENTS, SLICES, "services", "networkpolicies.networking.k8s.io"}
    assert not others & {*gone[: gone.index(APIS)]}
