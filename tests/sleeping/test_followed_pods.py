# SPDX-License-Identifier: Apache-2.0
"""The pods of a namespace are followed by a watch, and listed only where it cannot answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.resources import PODS
from dovetail.kube.objects.pods import Pod
from dovetail.playground import Fault
from dovetail.sleeping import followed_pods
from dovetail.sleeping.followed_pods import FollowedPods
from tests.patience import PATIENCE_S
from tests.sleeping.world import World, pod, world


class Lists:
    """How often pods were listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = followed_pods.list_all

        async def counted(*args: object) -> object:
            self.count += 1
            return await real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(followed_pods, "list_all", counted)


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Lists:
    return Lists(monkeypatch)


@pytest.fixture
async def some() -> AsyncIterator[World]:
    async with world() as found:
        found.add("a")
        yield found


@asynccontextmanager
async def followed(client: Client) -> AsyncIterator[FollowedPods]:
    pods = FollowedPods(client, "serving")
    task = asyncio.create_task(pods.run())
    try:
        yield pods
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def turned(pods: FollowedPods) -> dict[str, str]:
    return {one.metadata.name: one.metadata.annotations.get("dovetail.dev/turn", "") for one in await pods.read()}


async def write(some: World, turn: str) -> Pod:
    body = {"metadata": {"annotations": {"dovetail.dev/turn": turn}}}
    return await some.client.request("PATCH", PODS.path("serving", "a"), body, decode=Pod, content_type=MERGE_PATCH)


async def until(is_so: Callable[[dict[str, str]], bool], pods: FollowedPods) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so(await turned(pods)):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)


async def following(pods: FollowedPods) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not pods.follows:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)


async def test_pods_of_the_namespace_are_listed_once_and_then_watched(some: World, lists: Lists) -> None:
    some.playground.put({**pod("other"), "metadata": {"name": "other", "namespace": "default"}})
    async with followed(some.client) as pods:
        assert await turned(pods) == {"a": ""}
        await following(pods)
        before = lists.count
        some.add("b")
        await until(lambda found: found.keys() == {"a", "b"}, pods)
        await some.client.request("DELETE", PODS.path("serving", "b"), params={"gracePeriodSeconds": 0})
        await until(lambda found: found.keys() == {"a"}, pods)
        for _ in range(50):
            await pods.read()
    assert lists.count == before


async def test_what_was_written_is_known_before_the_watch_brings_it(some: World, lists: Lists) -> None:
    async with followed(some.client) as pods:
        await pods.read()
        await following(pods)
        before = lists.count
        some.playground.faults.watches_flow.clear()
        pods.note(await write(some, "waking"))
        assert await turned(pods) == {"a": "waking"}
        pods.note(await write(some, "awake"))
        assert await turned(pods) == {"a": "awake"}
        # Another process writes, and what we wrote is not taken for newer.
        await write(some, "asleep")
        some.playground.faults.watches_flow.set()
        await until(lambda found: found == {"a": "asleep"}, pods)
        assert lists.count == before


async def test_one_that_begins_to_lead_knows_what_the_server_has(some: World) -> None:
    async with followed(some.client) as pods:
        await pods.read()
        await following(pods)
        some.playground.faults.watches_flow.clear()
        await write(some, "waking")
        assert await turned(pods) == {"a": ""}
        pods.refresh()
        assert await turned(pods) == {"a": "waking"}
        # The watch is older than this list still.
        assert await turned(pods) == {"a": "waking"}


async def test_where_watching_is_not_permitted_each_read_is_a_list(
    some: World, lists: Lists, caplog: pytest.LogCaptureFixture
) -> None:
    some.playground.faults.add(Fault("answer", "WATCH", "pods", times=1000, status=403, message="no watch of pods"))
    async with followed(some.client) as pods:
        await asyncio.sleep(1.5)
        for count in range(3):
            assert await turned(pods) == {"a": ""}
            assert lists.count == count + 1
    assert [one.message.count("no watch of pods") for one in caplog.records] == [1]
    some.playground.faults.add(Fault("answer", "GET", "pods", times=10, status=403))
    with pytest.raises(KubeError):
        await FollowedPods(some.client, "serving").read()
