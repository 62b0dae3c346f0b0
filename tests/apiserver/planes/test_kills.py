# SPDX-License-Identifier: Apache-2.0
"""The process of the planes is killed while clients write: what was answered is there, and watches go on."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.apiserver.planes import served
from tests.contract.api import Api, config_map
from tests.forked import Forked

WRITERS = 5


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Forked, Api]]:
    """A process that serves, killed at the end, and a client of its plane."""
    with Forked(str(folder), run=served.run) as process:
        url, token = (await asyncio.to_thread(process.first_line)).split()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
            yield process, Api(session, "default", url)
        process.kill()
        await process.ended()


@pytest.mark.slow
async def test_kills_lose_no_answered_write_and_no_watch_event(tmp_path: Path) -> None:
    answered: dict[str, int] = {}
    seen: dict[str, int] = {}
    resume = ""
    for kill in range(4):
        async with serving(tmp_path) as (process, api):
            maps = {one["metadata"]["name"]: one for one in (await api.get(api.path("configmaps"))).body["items"]}
            found = {name: int(one["data"]["key"]) for name, one in maps.items()}
            # The last write of each writer may be on disk without an answer, or without having been seen.
            assert all(found[name] in (value, value + 1) for name, value in answered.items())
            assert all(found[name] >= value for name, value in seen.items())

            async def write(api: Api, number: int, start: int) -> None:
                name = f"m{number}"
                for value in itertools.count(start):
                    body = config_map(name) | {"data": {"key": str(value)}}
                    reply = await (
                        api.put(api.path("configmaps", name), body) if value else api.post(api.path("configmaps"), body)
                    )
                    assert reply.status in (200, 201), reply.body
                    answered[name] = value

            async def watch(api: Api) -> None:
                nonlocal resume
                async with api.watch(
                    api.path("configmaps"), **({"resourceVersion": resume} if resume else {})
                ) as events:
                    while True:
                        one = (await events.next())["object"]
                        name, value = one["metadata"]["name"], int(one["data"]["key"])
                        # No value is left out, also between two processes.
                        assert value == seen.get(name, -1) + 1
                        seen[name], resume = value, one["metadata"]["resourceVersion"]

            tasks = [asyncio.create_task(watch(api))] if kill == 0 or resume else []
            tasks += [asyncio.create_task(write(api, n, found.get(f"m{n}", -1) + 1)) for n in range(WRITERS)]
            before = len(seen) and sum(seen.values())
            while sum(seen.values()) < before + 60:
                await asyncio.sleep(0.01)
                assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
            process.kill()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            lost = [one for one in outcomes if not isinstance(one, aiohttp.ClientError)]
            assert all("the watch has ended" in str(one) for one in lost), lost
    assert len(answered) == WRITERS
