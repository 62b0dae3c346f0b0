# SPDX-License-Identifier: Apache-2.0
"""An agent that holds a lease: what it sees, what it may do, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from itertools import pairwise

import pytest

from dovetail.plane import (
    AgentPod,
    BrokerRefused,
    EndCause,
    FakeBroker,
    FakeFault,
    FaultKind,
    LeaseOver,
    NotGranted,
    Option,
    Plane,
    PlaneLease,
    RenewalRefused,
    RevokeNotice,
)

MINUTE = 60_000


async def test_a_lease_has_devices_a_fence_and_time_and_is_returned_at_the_end_of_the_block() -> None:
    broker = FakeBroker({"n0": 8})

    async def agent() -> None:
        async with Plane(broker, "team/a") as plane:
            async with plane.lease(Option(gpus=4, minutes=20, same_node=True)) as lease:
                (held,) = broker.leases
                assert [device.gpu for device in lease.devices] == list(held.holdings[0].devices)
                assert lease.fence == held.fence and lease.live and plane.leases == (lease,)
                assert timedelta(minutes=19) < lease.remaining() <= timedelta(minutes=20)
            assert lease.cause is EndCause.RETURNED and not plane.leases
            with pytest.raises(LeaseOver):
                _ = lease.fence

    await broker.run(agent())
    assert broker.leases == () and broker.requests == ()


async def test_a_lease_is_returned_after_an_exception() -> None:
    broker = FakeBroker()

    async def agent() -> None:
        async with Plane(broker, "team/a") as plane, plane.lease(Option(gpus=2)):
            raise ValueError("the work failed")

    with pytest.raises(ValueError, match="the work failed"):
        await broker.run(agent())
    assert broker.leases == () and broker.requests == ()


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_a_cancelled_agent_leaves_nothing_behind_wherever_it_was(turns: int) -> None:
    broker = FakeBroker()
    async with Plane(broker, "team/a") as plane:

        async def agent() -> None:
            async with plane.lease(Option(gpus=2)):
                await asyncio.Event().wait()

        task = asyncio.create_task(agent())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await broker.advance(1000)
        assert broker.leases == () and broker.requests == () and not plane.leases


async def test_the_revocation_is_reported_with_its_deadline_cause_and_what_to_do() -> None:
    broker, seen = FakeBroker({"n0": 8}, grace_ms=MINUTE), list[RevokeNotice]()

    async def agent() -> PlaneLease:
        async with Plane(broker, "team/a") as plane, plane.lease(Option(gpus=2, minutes=60), seen.append) as lease:
            await broker.clock.sleep(5 * MINUTE)
            broker.maintain("n0")
            await lease.revoked.wait()
            assert lease.live
            await lease.over.wait()
            return lease

    lease = await broker.run(agent())
    (notice,) = seen
    assert notice.cause is EndCause.MAINTENANCE and notice.left == timedelta(minutes=1)
    assert "checkpoint now" in notice.action
    assert broker.clock.now_ms() == notice.deadline_ms and lease.cause is EndCause.MAINTENANCE


async def test_the_end_of_the_term_is_reported_one_grace_before_and_again_after_a_renewal() -> None:
    broker, seen = FakeBroker(grace_ms=MINUTE), list[int]()

    async def agent() -> None:
        async with Plane(broker, "team/a") as plane:
            begun_ms = broker.clock.now_ms()

            async def renew(notice: RevokeNotice) -> None:
                seen.append(broker.clock.now_ms() - begun_ms)
                assert notice.cause is EndCause.EXPIRED
                if len(seen) == 1:
                    await lease.renew(10)

            async with plane.lease(Option(minutes=10), renew) as lease:
                await lease.over.wait()
                assert lease.cause is EndCause.EXPIRED

    await broker.run(agent())
    assert seen == [9 * MINUTE, 18 * MINUTE]


async def test_a_renewal_too_early_is_refused_with_the_reason() -> None:
    broker = FakeBroker()

    async def agent() -> None:
        async with Plane(broker, "team/a") as plane, plane.lease(Option(minutes=10)) as lease:
            await broker.clock.sleep(5 * MINUTE)
            with pytest.raises(RenewalRefused, match="in the last third of its term"):
                await lease.renew(10)
            await broker.clock.sleep(3 * MINUTE)
            assert await lease.renew(10) == timedelta(minutes=10)

    await broker.run(agent())


async def test_a_lease_is_not_used_once_the_broker_was_silent_for_its_grace_and_again_after_that() -> None:
    broker = FakeBroker(grace_ms=MINUTE)
    away = False

    def fault(_: str) -> FakeFault | None:
        return FakeFault(FaultKind.LOST) if away else None

    broker.faults = fault
    async with Plane(broker, "team/a") as plane:
        lease = await broker.run(plane.negotiate(Option(minutes=30)))
        away = True
        await broker.advance(69_000)
        assert not lease.live and not lease.over.is_set() and plane.leases == ()
        assert plane.place([AgentPod("p")]) is None
        away = False
        await broker.advance(15_000)
        assert lease.live and lease.fence


async def test_a_silent_agent_has_lost_its_lease_and_sees_so_when_it_is_back() -> None:
    broker = FakeBroker(grace_ms=MINUTE)
    away = False
    broker.faults = lambda _: FakeFault(FaultKind.LOST) if away else None
    async with Plane(broker, "team/a") as plane:
        lease = await broker.run(plane.negotiate(Option(minutes=30)))
        away = True
        await broker.advance(2 * MINUTE)
        assert broker.leases == ()
        away = False
        await broker.advance(15_000)
        assert lease.over.is_set() and lease.cause is EndCause.LOST


async def test_a_restarted_broker_is_followed_again_and_leases_go_on() -> None:
    broker = FakeBroker()
    async with Plane(broker, "team/a") as plane:
        lease = await broker.run(plane.negotiate(Option(minutes=30)))
        broker.restart()
        await broker.advance(5 * MINUTE)
        assert lease.live and [one.id for one in broker.leases] == [lease.id]


@pytest.mark.parametrize("adopt", [False, True])
async def test_leases_of_an_earlier_process_are_returned_or_adopted(adopt: bool) -> None:
    broker = FakeBroker()
    first = Plane(broker, "team/a")
    await first.__aenter__()
    await broker.run(first.negotiate(Option(minutes=30)))
    for loop in first._tasks._loops:
        loop.cancel()
    async with Plane(broker, "team/a", adopt=adopt) as plane:
        await broker.advance(1000)
        assert len(plane.leases) == len(broker.leases) == int(adopt)


async def test_requests_of_an_earlier_process_are_withdrawn() -> None:
    broker = FakeBroker({"n0": 2})
    first = Plane(broker, "team/a")
    await first.__aenter__()
    task = asyncio.create_task(first.negotiate(Option(gpus=4)))
    await broker.advance(1000)
    assert len(broker.requests) == 1
    for loop in first._tasks._loops:
        loop.cancel()
    async with Plane(broker, "team/a"):
        await broker.advance(1000)
        assert broker.requests == ()
    task.cancel()


async def test_heartbeats_of_agents_that_start_together_are_spread_over_the_period() -> None:
    moments: dict[str, list[int]] = {}

    class Counting(FakeBroker):
        async def heartbeat(self, plane: str) -> None:
            moments.setdefault(plane, []).append(self.clock.now_ms())
            await super().heartbeat(plane)

    broker = Counting()
    async with AsyncExitStack() as stack:
        for number in range(100):
            await stack.enter_async_context(Plane(broker, f"team-{number}/a"))
        for _ in range(12):
            await broker.advance(5_000)
    begun_ms = moments["team-0/a"][0]
    assert all(times[0] == begun_ms for times in moments.values())
    for times in moments.values():
        apart = [after - before for before, after in pairwise(times)]
        assert apart[0] <= 10_000 and set(apart[1:]) == {10_000}
    in_one_second = Counter((times[1] - begun_ms) // 1000 for times in moments.values())
    assert len(in_one_second) == 10 and max(in_one_second.values()) <= 20


async def test_a_plane_that_the_broker_refuses_fails_at_once() -> None:
    class Strict(FakeBroker):
        async def heartbeat(self, plane: str) -> None:
            raise BrokerRefused(f"there is no plane {plane}")

    broker = Strict()
    async with Plane(broker, "team/a") as plane:
        await broker.advance(1)
        with pytest.raises(BrokerRefused):
            await broker.run(plane.negotiate(Option()))


async def test_a_request_that_can_never_be_granted_ends_with_the_reason() -> None:
    broker = FakeBroker()

    async def agent() -> None:
        async with Plane(broker, "team/a") as plane:
            await plane.negotiate(Option(gpus=8, same_node=True, minutes=1, latest_in=2))

    other = Plane(broker, "team2/b")
    async with other:
        await broker.run(other.negotiate(Option(gpus=8, minutes=30)))
        with pytest.raises(NotGranted, match="denied"):
            await broker.run(agent(), within_ms=3_600_000)
