# SPDX-License-Identifier: Apache-2.0
"""Agents under random faults: lost and repeated calls, lost answers, delayed news, cut connections, brokers that begin
again, nodes that go into maintenance. The broker's own books are the oracle at every moment."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from dovetail.plane import (
    Accept,
    AgentPod,
    AgentRequest,
    CounterOffer,
    Decline,
    FakeBroker,
    FakeFault,
    FaultKind,
    KeepWaiting,
    NotGranted,
    OfferRound,
    Option,
    Plane,
    PlaneLease,
    RenewalRefused,
)
from dovetail.plane.policies import Move

MINUTE = 60_000
GRACE_MS = 60_000


class Agents:
    """Planes whose agents ask, hold, renew and return at random. `held` has all leases that any of them ever had."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.broker = FakeBroker({f"n{n}": 4 for n in range(3)}, grace_ms=GRACE_MS, faults=self.fault)
        self.faulty = 0.2
        self.away = False
        self.held: list[PlaneLease] = []
        self.ended = self.begun = 0

    def fault(self, operation: str) -> FakeFault | None:
        chance = self.random
        if self.away:
            return FakeFault(FaultKind.LOST)
        if chance.random() >= (self.faulty / 4 if operation == "news" else self.faulty):
            return None
        return FakeFault(chance.choice(list(FaultKind)), chance.choice((10, 1000, 20_000)))

    def policy(self, table: OfferRound) -> Move:
        chance = self.random
        kind = chance.randrange(8)
        if kind == 0:
            return KeepWaiting()
        if kind == 1:
            return Decline("by chance")
        if kind == 2 and not table.refused:
            return CounterOffer(Option(gpus=chance.randint(1, 3), minutes=5).alternative(table.now_ms))
        return Accept(chance.choice(table.offers).id)

    async def agent(self, plane: Plane) -> None:
        chance = self.random
        while True:
            options = tuple(
                Option(gpus=chance.randint(1, 4), same_node=chance.random() < 0.5, minutes=chance.randint(4, 15))
                for _ in range(chance.randint(1, 3))
            )
            asked = AgentRequest(options=options, firm=chance.random() < 0.3, within_minutes=20)
            self.begun += 1
            try:
                async with plane.lease(asked, None, self.policy) as lease:
                    self.held.append(lease)
                    await self.broker.clock.sleep(chance.randint(0, 8) * MINUTE)
                    if chance.random() < 0.5:
                        await lease.renew(4)
            except (NotGranted, RenewalRefused):
                pass
            self.ended += 1
            await self.broker.clock.sleep(chance.randint(1, 60_000))

    def check(self, planes: list[Plane]) -> None:
        """Whatever an agent may use is live for the broker with that fence, and no device has two users."""
        live = {lease.id: lease for lease in self.broker.leases}
        used: dict[tuple[str, int], str] = {}
        for lease in self.held:
            if lease.live:
                assert lease.fence == live[lease.id].fence
                assert self.broker.clock.now_ms() < self.broker.end_ms(lease.id)
                for device in lease.devices:
                    assert used.setdefault((device.node, device.gpu), lease.id) == lease.id
        for plane in planes:
            for one in plane.place([AgentPod("p")]) or ():
                assert live[one.lease].fence == one.fence


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_nothing_is_used_without_a_live_lease_and_everything_ends(seed: int) -> None:
    agents = Agents(seed)
    broker, chance = agents.broker, agents.random
    planes = [Plane(broker, f"{name}/{name}", session="s") for name in "abc"]
    for plane in planes:
        await plane.__aenter__()
    tasks = [asyncio.create_task(agents.agent(plane)) for plane in planes for _ in range(2)]
    cancelled = list[asyncio.Task[None]]()
    for _ in range(250):
        await broker.advance(chance.choice((100, 3000, 11_000, 40_000)))
        agents.check(planes)
        act = chance.randrange(40)
        if act == 0:
            broker.restart()
        elif act == 1:
            broker.cut()
        elif act <= 4:
            broker.maintain(f"n{chance.randrange(3)}")
        elif act <= 8:
            for number in range(3):
                broker.repair(f"n{number}")
        elif act == 9:
            agents.away = not agents.away
        elif act == 10:
            agents.away = False
        elif act == 11:
            number = chance.randrange(len(tasks))
            tasks[number].cancel()
            cancelled.append(tasks[number])
            tasks[number] = asyncio.create_task(agents.agent(planes[number // 2]))
    assert all(not task.done() for task in tasks)
    assert agents.held and agents.ended > 5
    agents.faulty, agents.away = 0, False
    for task in tasks:
        task.cancel()
    await broker.advance(10 * MINUTE)
    assert all(task.cancelled() for task in [*tasks, *cancelled])
    assert broker.leases == () and broker.requests == ()
    for plane in planes:
        await plane.__aexit__(None, None, None)


@pytest.mark.parametrize("seed", range(100, 106))
@pytest.mark.slow
async def test_every_negotiation_with_a_limit_ends_by_it(seed: int) -> None:
    agents = Agents(seed)
    broker, chance = agents.broker, agents.random
    limit_ms = 10 * MINUTE

    async def one(plane: Plane) -> None:
        asked = AgentRequest(options=(Option(gpus=chance.randint(1, 16), minutes=5),), within_minutes=10)
        try:
            lease = await plane.negotiate(asked, agents.policy)
        except NotGranted:
            return
        await lease.give_back()

    async with Plane(broker, "a/a", session="s") as plane:
        tasks = [asyncio.create_task(one(plane)) for _ in range(8)]
        await broker.advance(3 * limit_ms)
        assert all(task.done() for task in tasks)
        for task in tasks:
            task.result()
        agents.faulty = 0
        await broker.advance(MINUTE)
        assert broker.leases == () and broker.requests == ()


async def test_an_answer_that_was_lost_is_repeated_and_counts_once() -> None:
    lost = {"put", "act"}

    def once(operation: str) -> FakeFault | None:
        if operation in lost:
            lost.discard(operation)
            return FakeFault(FaultKind.ANSWER_LOST)
        return None

    broker = FakeBroker({"n0": 4}, faults=once)

    async def agent() -> None:
        async with Plane(broker, "a/a") as plane, plane.lease(Option(gpus=2, minutes=10)) as lease:
            await broker.clock.sleep(8 * MINUTE)
            await lease.renew(10)
            assert lease.record.renewals == 1

    await broker.run(agent())
    assert broker.calls.count("act") == 3 and broker.leases == ()
