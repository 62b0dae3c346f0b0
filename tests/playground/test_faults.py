# SPDX-License-Identifier: Apache-2.0
"""Faults apply to the requests that match, as often as configured, and then no more."""

import asyncio

import aiohttp
import pytest

from dovetail.playground import Fault, Playground
from tests.contract.api import Api, config_map, summary


async def test_the_next_matching_requests_are_answered_with_an_error(playground: Playground, api: Api) -> None:
    await api.create_pod("one")
    await api.create_pod("two")
    playground.faults.add(Fault("answer", "POST", "pods/binding", name="o.*", times=2, status=503, retry_after_s=3))
    assert (await api.bind("two")).status == 201
    for _ in range(2):
        reply = await api.bind("one")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "3")
        assert reply.body["reason"] == "ServiceUnavailable"
    assert (await api.bind("one")).status == 201


async def test_faults_happen_in_the_order_in_which_they_were_added(playground: Playground, api: Api) -> None:
    for status in (429, 500):
        playground.faults.add(Fault("answer", "GET", "configmaps", status=status))
    assert [(await api.get(api.path("configmaps"))).status for _ in range(3)] == [429, 500, 200]


async def test_a_connection_breaks_before_or_after_the_write(playground: Playground, api: Api) -> None:
    for effect, name, status in (("drop-before", "a", 404), ("drop-after", "b", 200)):
        playground.faults.add(Fault(effect, "POST", "configmaps"))
        with pytest.raises(aiohttp.ClientError):
            await api.post(api.path("configmaps"), config_map(name))
        assert (await api.get(api.path("configmaps", name))).status == status


async def test_a_delayed_request_is_carried_out_in_the_end(playground: Playground, api: Api) -> None:
    playground.faults.add(Fault("delay", "POST", "configmaps", delay_s=0.2))
    slow = asyncio.create_task(api.post(api.path("configmaps"), config_map("slow")))
    assert (await api.post(api.path("leases", version="coordination.k8s.io/v1"), _lease())).status == 201
    assert not slow.done()
    assert (await slow).status == 201


async def test_watches_break_and_can_be_resumed(playground: Playground, api: Api) -> None:
    start = (await api.create_map("one"))["metadata"]["resourceVersion"]
    async with api.watch(api.path("configmaps"), resourceVersion=start) as events:
        playground.faults.break_watches()
        with pytest.raises(aiohttp.ClientError):
            await events.next()
    await api.create_map("two")
    async with api.watch(api.path("configmaps"), resourceVersion=start) as events:
        assert summary(await events.next()) == ("ADDED", "two")


async def test_a_watch_can_be_answered_with_an_error(playground: Playground, api: Api) -> None:
    playground.faults.add(Fault("answer", "WATCH", "configmaps", status=429, retry_after_s=1))
    reply = await api.get(api.path("configmaps"), watch="true")
    assert (reply.status, reply.headers["Retry-After"]) == (429, "1")


async def test_expired_history_is_gone_for_resumed_watches_and_later_pages(playground: Playground, api: Api) -> None:
    first = await api.create_map("one")
    await api.create_map("two")
    page = await api.get(api.path("configmaps"), limit="1")
    async with api.watch(api.path("configmaps"), resourceVersion=page.version) as open_watch:
        playground.faults.expire_history()
        async with api.watch(api.path("configmaps"), resourceVersion=first["metadata"]["resourceVersion"]) as events:
            (error,) = await events.rest()
        await api.create_map("three")
        assert summary(await open_watch.next()) == ("ADDED", "three")
    assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")
    late = await api.get(api.path("configmaps"), **{"continue": page.body["metadata"]["continue"]})
    assert (late.status, late.body["reason"]) == (410, "Expired")


async def test_a_version_that_has_left_the_history_is_too_old(playground: Playground, api: Api) -> None:
    start = (await api.create_map("one"))["metadata"]["resourceVersion"]
    for number in range(50):
        await api.patch(api.path("configmaps", "one"), {"data": {"number": str(number)}})
    async with api.watch(api.path("configmaps"), resourceVersion=start) as events:
        assert len([await events.next() for _ in range(50)]) == 50
    await api.patch(api.path("configmaps", "one"), {"data": {"number": "last"}})
    async with api.watch(api.path("configmaps"), resourceVersion=start) as events:
        assert (await events.next())["object"]["reason"] == "Expired"


async def test_a_server_goes_away_and_comes_back(playground: Playground, api: Api) -> None:
    await api.create_map("one")
    async with api.watch(api.path("configmaps")) as events:
        await events.next()
        await playground.faults.go_away()
        with pytest.raises(aiohttp.ClientError):
            await events.next()
    with pytest.raises(aiohttp.ClientConnectorError):
        await api.get(api.path("configmaps"))
    url = playground.url
    await playground.faults.come_back()
    assert playground.url == url and (await api.get(api.path("configmaps"))).names == ["one"]


async def test_bookmarks_can_be_lost(playground: Playground, api: Api) -> None:
    playground.faults.lose_bookmarks = True
    query = {"allowWatchBookmarks": "true", "timeoutSeconds": "1", "fieldSelector": "metadata.name=none"}
    start = (await api.create_map("one"))["metadata"]["resourceVersion"]
    async with api.watch(api.path("configmaps"), resourceVersion=start, **query) as events:
        await api.create_map("two")
        assert await events.rest() == []


async def test_an_event_can_be_lost(playground: Playground, api: Api) -> None:
    start = (await api.create_map("one"))["metadata"]["resourceVersion"]
    playground.faults.lose_events("configmaps", 1)
    async with api.watch(api.path("configmaps"), resourceVersion=start) as events:
        await api.create_map("lost")
        await api.create_map("seen")
        assert summary(await events.next()) == ("ADDED", "seen")


async def test_a_stalled_watch_is_silent_until_it_flows_again(playground: Playground, api: Api) -> None:
    start = (await api.create_map("one"))["metadata"]["resourceVersion"]
    query = {"allowWatchBookmarks": "true", "resourceVersion": start}
    async with api.watch(api.path("configmaps"), **query) as events:
        playground.faults.watches_flow.clear()
        await api.create_map("two")
        silence = asyncio.create_task(events.next())
        done, _ = await asyncio.wait([silence], timeout=0.2)
        assert not done
        playground.faults.watches_flow.set()
        assert summary(await silence) == ("ADDED", "two")


async def test_clearing_ends_all_faults(playground: Playground, api: Api) -> None:
    playground.faults.add(Fault("answer", times=100, status=500))
    playground.faults.clear()
    assert (await api.get(api.path("configmaps"))).status == 200


def _lease() -> dict[str, object]:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "quick"}}
