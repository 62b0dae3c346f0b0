# SPDX-License-Identifier: Apache-2.0
"""The operator is killed at each of its writes, before and after it takes effect: the next one comes to the same
end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from dovetail.playground import Playground
from tests.operator.stack_world import STACKS, World

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


async def _new_world() -> World:
    playground = Playground(start_delay_s=0.0, stop_delay_s=0.0)
    await playground.start()
    playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}})
    return World(playground)


@pytest.mark.slow
@pytest.mark.parametrize("step", range(len(STEPS)), ids=["install", "upgrade", "uninstall"])
@pytest.mark.usefixtures("short_pauses")
async def test_the_end_is_the_same(step: int) -> None:
    act, done = STEPS[step]
    world = await _new_world()
    await _through(world, step)
    act(world)
    async with world.operator():
        await done(world)
        await world.quiet(1.0)
    wanted = world.contents()
    await world.playground.stop()
    number, killed = 1, True
    while killed:
        for carried_out in (False, True):
            world = await _new_world()
            await _through(world, step)
            act(world)
            faults = world.playground.faults
            faults.cut_off_at_write(number, carried_out=carried_out)
            async with world.operator():
                ends = [asyncio.ensure_future(end) for end in (done(world), faults.cut_off.wait())]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                killed = faults.cut_off.is_set()
                for end in ends:
                    end.cancel()
            faults.clear()
            async with world.operator():
                await done(world)
                with contextlib.suppress(TimeoutError):
                    await world.until(lambda: world.contents() == wanted, 20)  # noqa: B023
                await world.quiet()
            assert world.contents() == wanted, f"killed at write {number}"
            await world.playground.stop()
        number += 1
    assert number > 4
