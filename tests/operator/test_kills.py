# SPDX-License-Identifier: Apache-2.0
"""The operator ends at each of its writes, before and after it takes effect: the next one comes to the same end.

A process keeps nothing but what is stored, so that another goes on from a copy of what was stored then. That a process
is really cut off is in `rollout/test_part.py` and `coexistence/test_takeovers.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from dovetail.apiserver.server import ApiServer
from dovetail.playground import Playground
from tests.operator.stack_world import STACKS, World
from tests.operator.store_driver import StoreCopy

pytestmark = pytest.mark.usefixtures("no_waits")

Act = Callable[[World], None]
POOLS = [{"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}}, {"name": "b"}]


def _install(world: World) -> None:
    world.stack(scheduler={"fabric": ["zone", "rack"], "replicas": 1})


def _upgrade(world: World) -> None:
    """Another image, one pool becomes two, and a field goes."""
    world.stack(image={"repository": "dovetail", "tag": "2"}, agent={"pools": POOLS})


def _uninstall(world: World) -> None:
    world.playground.delete(STACKS, "", "gpus")


async def _applied(world: World) -> None:
    await world.applied()
    await world.until(world.rolled_out)
    await world.quiet()


async def _gone(world: World) -> None:
    await world.until(lambda: world.get(STACKS, "", "gpus") is None)
    await world.quiet()


STEPS: list[tuple[Act, Callable[[World], Awaitable[None]]]] = [
    (_install, _applied), (_upgrade, _applied), (_uninstall, _gone),
]  # fmt: skip


async def _through(world: World, before: int) -> None:
    """The steps before this one, undisturbed."""
    for act, done in STEPS[:before]:
        act(world)
        async with world.operator():
            await done(world)


async def _opened(copy: StoreCopy | None = None) -> World:
    """A cluster with a node, or as it was when it was copied."""
    playground = Playground(start_delay_s=0.0, stop_delay_s=0.0)
    await playground.start()
    world = World(playground)
    if copy is None:
        playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}})
        return world
    for collection in playground.store.collections:
        for key in collection.objects.keys() - copy.collections.get(collection.name, {}).keys():
            playground.store.remove(collection.name, key)
    for name, objects in copy.collections.items():
        resource = playground._catalogue.of_collection(name)
        assert resource is not None
        for one in objects.values():
            playground._deletions.commit(resource, one)
    return world


def _copied_at_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[str, StoreCopy]]:
    """What is stored before and after each write over HTTP from now on, by its version: it is the same after a write
    and before the next one where nobody else writes between the two."""
    copies: dict[int, tuple[str, StoreCopy]] = {}
    writes = 0
    answer = ApiServer.answer

    async def copied(server: ApiServer, request: web.BaseRequest, path: str, body: bytes) -> web.StreamResponse:
        nonlocal writes
        before = StoreCopy.of(server.store) if request.method != "GET" else None
        answered = await answer(server, request, path, body)
        if before is not None and server.store.version != before.version:
            writes += 1
            copies.setdefault(before.version, (f"before write {writes}", before))
            copies.setdefault(server.store.version, (f"after write {writes}", StoreCopy.of(server.store)))
        return answered

    monkeypatch.setattr(ApiServer, "answer", copied)
    return copies


@pytest.mark.slow
@pytest.mark.parametrize("step", range(len(STEPS)), ids=["install", "upgrade", "uninstall"])
@pytest.mark.usefixtures("short_pauses")
async def test_the_end_is_the_same(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    act, done = STEPS[step]
    world = await _opened()
    await _through(world, step)
    act(world)
    with monkeypatch.context() as patched:
        copies = _copied_at_writes(world, patched)
        async with world.operator():
            await done(world)
            await world.quiet(1.0)
    wanted = world.contents()
    await world.playground.stop()
    assert len(copies) > 8
    for which, copy in copies.values():
        world = await _opened(copy)
        async with world.operator():
            await done(world)
            with contextlib.suppress(TimeoutError):
                await world.until(lambda: world.contents() == wanted, 20)  # noqa: B023
            await world.quiet()
        assert world.contents() == wanted, f"killed {which}"
        await world.playground.stop()
