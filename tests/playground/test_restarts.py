# SPDX-License-Identifier: Apache-2.0
"""A playground with a file goes on where it ended."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from dovetail.playground import Playground
from tests.contract.api import Api, config_map, summary


@asynccontextmanager
async def running(file: Path, history: int = 100) -> AsyncIterator[tuple[Playground, Api]]:
    playground = Playground(history=history, bookmark_interval_s=0.05, file=file)
    url = await playground.start()
    async with aiohttp.ClientSession(url) as session:
        yield playground, Api(session, "default")
    await playground.stop()


async def test_objects_versions_and_watches_survive_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    async with running(file) as (playground, api):
        seen = await api.create_map("seen")
        await api.create_map("late")
        await api.delete(api.path("configmaps", "seen"))
        version = playground.store.version
    async with running(file) as (playground, api):
        assert playground.store.version == version
        assert (await api.get(api.path("configmaps"))).names == ["late"]
        start = seen["metadata"]["resourceVersion"]
        async with api.watch(api.path("configmaps"), resourceVersion=start) as events:
            assert [summary(await events.next()) for _ in range(2)] == [("ADDED", "late"), ("DELETED", "seen")]
            created = await api.create_map("new")
            assert summary(await events.next()) == ("ADDED", "new")
        assert int(created["metadata"]["resourceVersion"]) == version + 1


async def test_a_version_that_was_forgotten_is_gone_after_a_restart_too(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    async with running(file, history=3) as (_, api):
        first = (await api.create_map("first"))["metadata"]["resourceVersion"]
        for name in ("a", "b", "c", "d"):
            await api.create_map(name)
    async with running(file, history=3) as (_, api):
        async with api.watch(api.path("configmaps"), resourceVersion=first) as events:
            assert (await events.next())["object"]["code"] == 410
        newest = (await api.get(api.path("configmaps"))).version
        async with api.watch(api.path("configmaps"), resourceVersion=newest) as events:
            await api.post(api.path("configmaps"), config_map("e"))
            assert summary(await events.next()) == ("ADDED", "e")


async def test_dependents_go_with_an_owner_that_is_deleted_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    async with running(file) as (_, api):
        owner = await api.create_map("owner")
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        await api.create_map("dependent", ownerReferences=[reference])
    async with running(file) as (_, api):
        await api.delete(api.path("configmaps", "owner"))
        assert (await api.get(api.path("configmaps"))).names == []
