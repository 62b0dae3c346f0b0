# SPDX-License-Identifier: Apache-2.0
"""An agent's plane against a broker that the test speaks for: what it makes of news, in whatever order they come."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.bargaining.types import GpuLease, Holding, LeaseAction, LeaseAlternative, LeaseRequest
from dovetail.plane import AgentRequest, FakeClock, NotGranted, Option, Plane
from dovetail.plane.broker import Current, LeaseNotice, Listed, Notice, RequestNotice
from dovetail.plane.options import record_of

MINUTE = 60_000


class SpokenBroker:
    """Yields what a test puts into `news`, and keeps what it is asked."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.news: asyncio.Queue[Notice] = asyncio.Queue()
        self.asked: list[LeaseRequest] = []
        self.withdrawn: list[str] = []

    async def heartbeat(self, plane: str) -> None:
        pass

    async def put(self, request: LeaseRequest) -> None:
        self.asked.append(request)

    async def withdraw(self, plane: str, request: str) -> None:
        self.withdrawn.append(request)

    async def act(self, plane: str, action: LeaseAction) -> None:
        pass

    async def follow(self, plane: str) -> AsyncIterator[Notice]:
        while True:
            yield await self.news.get()

    async def speak(self, *news: Notice) -> None:
        for notice in news:
            self.news.put_nowait(notice)
        for _ in range(20):
            await asyncio.sleep(0)


def lease(name: str, start_ms: int) -> LeaseNotice:
    one = GpuLease(
        f"team/{name}", "team/a", name, LeaseAlternative(), (Holding("u", "n0", (0,)),), start_ms,
        start_ms + 30 * MINUTE, start_ms, MINUTE,
    )  # fmt: skip
    return LeaseNotice(one, "Active")


NOTHING = Listed(frozenset(), frozenset())


async def test_nothing_is_asked_before_the_broker_was_heard() -> None:
    broker = SpokenBroker()
    async with Plane(broker, "team/a") as plane:
        task = asyncio.create_task(plane.negotiate(Option()))
        await broker.speak(NOTHING)
        assert not broker.asked
        broker.clock.move(broker.clock.now_ms() + 5 * MINUTE)
        await broker.speak(Current(broker.clock.now_ms()))
        (asked,) = broker.asked
        assert asked.created_ms == broker.clock.now_ms()
        task.cancel()


async def test_a_broker_that_is_never_heard_grants_nothing_in_time() -> None:
    broker = SpokenBroker()
    async with Plane(broker, "team/a") as plane:
        task = asyncio.create_task(plane.negotiate(AgentRequest(options=(Option(),), within_minutes=1)))
        await broker.speak(NOTHING)
        broker.clock.move(broker.clock.now_ms() + MINUTE)
        with pytest.raises(NotGranted, match="the broker was not heard"):
            await task


async def test_the_grant_of_one_lease_makes_no_other_one_sure() -> None:
    broker = SpokenBroker()
    start_ms = broker.clock.now_ms()
    async with Plane(broker, "team/a", adopt=True) as plane:
        await broker.speak(lease("one", start_ms), lease("two", start_ms + 2 * MINUTE))
        await broker.speak(Listed(frozenset(), frozenset({"team/one", "team/two"})), Current(start_ms))
        broker.clock.move(start_ms + 2 * MINUTE)
        # A revocation of the first, decided a minute ago, may be on its way.
        assert [one.name for one in plane.leases] == ["two"]
        await broker.speak(Current(start_ms + 2 * MINUTE))
        assert [one.name for one in plane.leases] == ["one", "two"]


async def test_what_is_left_of_an_earlier_process_is_withdrawn_also_where_it_was_granted() -> None:
    broker = SpokenBroker()
    async with Plane(broker, "team/a", adopt=True):
        await broker.speak(lease("held", broker.clock.now_ms()), RequestNotice("team/held", "Granted"))
        await broker.speak(RequestNotice("team/over", "Granted"), RequestNotice("team/waits", "Pending"))
        assert broker.withdrawn == ["team/waits"]
        await broker.speak(Listed(frozenset({"team/held", "team/over", "team/waits"}), frozenset({"team/held"})))
        assert set(broker.withdrawn) == {"team/over", "team/waits"}


@given(st.text(max_size=80), st.text(min_size=1, max_size=70), st.text("abcdefghij0123456789", min_size=1, max_size=70))
def test_the_name_of_a_request_is_one_that_an_object_can_have(asked: str, agent: str, session: str) -> None:
    request = record_of(AgentRequest(options=(Option(),), name=asked), f"team/{agent}", session, 1)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", request.name) and len(request.name) <= 63
    assert request.id == f"team/{request.name}"


@given(st.text(max_size=80), st.integers(0, 10**6), st.integers(0, 10**6))
def test_names_differ_where_the_numbers_do(asked: str, one: int, other: int) -> None:
    requests = [
        record_of(AgentRequest(options=(Option(),), name=asked), "team/a", f"3f9c0d1e2b4a-{n}", 1) for n in (one, other)
    ]
    assert (requests[0].name == requests[1].name) == (one == other)
