# SPDX-License-Identifier: Apache-2.0
"""A model that asks for too much: each bound has its reason, and what was there before goes on."""

from __future__ import annotations

import asyncio

from dovetail.plane.mcp.session import CALLS_AT_ONCE, MOST_HELD, MOST_KNOWN, MOST_OPEN, MOST_WAITING
from dovetail.plane.mcp.tools import call
from tests.plane.mcp.model import MINUTE, SECOND, model, occupied


async def test_so_many_requests_are_open_at_a_time() -> None:
    async with model(8) as one, occupied(one.broker, 8, 60):
        for _ in range(MOST_OPEN):
            await one.works("ask", options=[{"gpus": 1}], wait_seconds=0)
        error = await one.fails("ask", options=[{"gpus": 1}])
        assert error["code"] == "TooManyRequests" and f"r1, r2, r3, r4, r5, r6, r7, r{MOST_OPEN};" in error["what"]
        await one.works("withdraw", request="r3")
        assert (await one.works("ask", options=[{"gpus": 1}], wait_seconds=0))["request"] == f"r{MOST_OPEN + 1}"


async def test_so_much_is_held_at_a_time() -> None:
    async with model(32) as one:
        for _ in range(MOST_HELD):
            lease = await one.granted(gpus=1, minutes=60)
        error = await one.fails("ask", options=[{"gpus": 1}])
        assert error["code"] == "TooManyRequests" and "give_back" in error["next"]
        await one.works("give_back", lease=lease)
        await one.granted(gpus=1, minutes=60)


async def test_so_many_calls_wait_at_a_time() -> None:
    async with model(8) as one, occupied(one.broker, 8, 60):
        await one.works("ask", options=[{"gpus": 1}], wait_seconds=0)
        waiting = {"request": "r1", "wait_seconds": 50}
        calls = [asyncio.ensure_future(call(one.session, "offers", waiting)) for _ in range(MOST_WAITING)]
        await one.broker.advance(SECOND)
        assert not any(task.done() for task in calls)
        error = await one.fails("why", request="r1")
        assert error["code"] == "TooManyWait"
        calls[0].cancel()
        await one.broker.advance(SECOND)
        assert (await one.works("why", request="r1"))["state"] == "waiting"
        await one.broker.advance(MINUTE)
        assert all(task.cancelled() or not task.result().failed for task in calls)


async def test_a_flood_of_calls_is_slowed_down() -> None:
    async with model(8) as one:
        for _ in range(CALLS_AT_ONCE):
            await one.works("leases")
        assert (await one.fails("leases"))["code"] == "TooManyCalls"
        assert (await one.fails("ask", options=[{"gpus": 1}]))["code"] == "TooManyCalls"
        await one.broker.advance(SECOND)
        assert (await one.works("leases"))["leases"] == []
        await one.works("leases")
        assert (await one.fails("leases"))["code"] == "TooManyCalls"


async def test_asking_and_withdrawing_again_and_again_leaves_nothing() -> None:
    async with model(8) as one:
        for number in range(1, MOST_KNOWN + 10):
            await one.works("ask", options=[{"gpus": 1}])
            await one.works("withdraw", request=f"r{number}")
            await one.broker.advance(2 * SECOND)
        assert not one.broker.requests
        assert (await one.fails("offers", request="r1"))["code"] == "UnknownRequest"
        assert (await one.works("offers", request=f"r{MOST_KNOWN + 9}"))["state"] == "ended"
