# SPDX-License-Identifier: Apache-2.0
"""What an agent can rely on, whatever the broker: the same tests in memory and against a scheduler on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dovetail.plane import (
    Accept,
    AgentRequest,
    CounterOffer,
    Decline,
    EndCause,
    LeaseOver,
    NotGranted,
    OfferRound,
    Option,
    PlaneLease,
    RenewalRefused,
    RevokeNotice,
)
from dovetail.plane.policies import Move
from tests.plane.benches import GRACE_MS, SECOND, Bench, FakeBench, cluster_bench, plane

pytestmark = pytest.mark.usefixtures("no_waits")


@pytest.fixture(params=["memory", "cluster"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "memory":
        yield FakeBench()
        return
    async with cluster_bench() as found:
        yield found


async def test_a_lease_has_exact_devices_and_is_returned_at_the_end_of_the_block(bench: Bench) -> None:
    async def agent() -> PlaneLease:
        async with plane(bench) as agent:
            async with agent.lease(AgentRequest(options=(Option(gpus=4, same_node=True, minutes=1),))) as lease:
                assert len(lease.devices) == 4 and len({one.node for one in lease.devices}) == 1
                assert lease.fence > 0 and bench.leases() == {lease.id} and agent.leases == (lease,)
                assert 50 < lease.remaining().total_seconds() <= 60
                assert lease.id == f"one/{lease.name}"
            with pytest.raises(LeaseOver):
                _ = lease.devices
            return lease

    lease = await bench.run(agent())
    assert lease.cause is EndCause.RETURNED
    await bench.until(lambda: not bench.leases() and not bench.requests())


async def test_the_option_that_fits_is_offered_and_accepted(bench: Bench) -> None:
    async def agents() -> tuple[int, int]:
        async with plane(bench) as one, plane(bench, "two") as two:
            first = await one.negotiate(Option(gpus=12, minutes=5))
            second = await two.negotiate([Option(gpus=8, minutes=5, latest_in=SECOND), Option(gpus=2, minutes=5)])
            mine = {(device.node, device.gpu) for device in first.devices}
            assert not mine & {(device.node, device.gpu) for device in second.devices}
            return first.granted.count, second.granted.count

    assert await bench.run(agents()) == (12, 2)
    await bench.until(lambda: not bench.leases() and not bench.requests())


async def test_a_counter_offer_is_granted_and_a_greedy_one_comes_back_with_the_reason(bench: Bench) -> None:
    refused = list[str]()

    def policy(table: OfferRound) -> Move:
        if table.rounds == 0:
            return CounterOffer(Option(gpus=16, minutes=5).alternative(table.now_ms))
        if table.rounds == 1:
            refused.append(table.refused)
            return CounterOffer(Option(gpus=3, minutes=2).alternative(table.now_ms))
        return Accept(table.offers[0].id)

    async def agent() -> tuple[int, int]:
        async with plane(bench) as one:
            lease = await one.negotiate(Option(gpus=6, minutes=5), policy)
            return lease.granted.count, lease.granted.duration_ms

    assert await bench.run(agent()) == (3, 120_000)
    assert len(refused) == 1 and refused[0]


async def test_what_is_declined_or_never_fits_is_not_granted(bench: Bench) -> None:
    async def agent() -> None:
        async with plane(bench) as one:
            with pytest.raises(NotGranted, match="declined: too late"):
                await one.negotiate(Option(gpus=1), lambda table: Decline("too late"))
            with pytest.raises(NotGranted, match="not granted in time"):
                await one.negotiate(AgentRequest(options=(Option(gpus=64),), within_minutes=SECOND))

    await bench.run(agent())
    await bench.until(lambda: not bench.leases() and not bench.requests())


async def test_why_has_the_reason_of_a_request_that_waits(bench: Bench) -> None:
    async def agents() -> str:
        async with plane(bench) as one, plane(bench, "two") as two:
            await one.negotiate(Option(gpus=16, minutes=5))
            asked = AgentRequest(options=(Option(gpus=16, minutes=5),), name="train", firm=True)
            task = asyncio.create_task(two.negotiate(asked))
            while not (why := await two.why("train")).startswith("It waits: ") or "nothing" in why:
                await bench.broker.clock.sleep(100)
            task.cancel()
            return why

    why = await bench.run(agents())
    assert "one/" not in why and "one-" not in why


async def test_a_renewal_is_taken_in_the_last_third_and_refused_before(bench: Bench) -> None:
    async def agent() -> None:
        async with plane(bench) as one, one.lease(Option(gpus=2, minutes=12 * SECOND)) as lease:
            with pytest.raises(RenewalRefused):
                await lease.renew(12 * SECOND)
            await bench.broker.clock.sleep(9000)
            assert (await lease.renew(12 * SECOND)).total_seconds() > 10
            assert lease.record.renewals == 1 and lease.live

    await bench.run(agent())
    await bench.until(lambda: not bench.leases())


async def test_a_lease_that_is_not_renewed_ends_with_its_term(bench: Bench) -> None:
    seen = list[RevokeNotice]()

    async def agent() -> EndCause | None:
        async with plane(bench) as one, one.lease(Option(gpus=2, minutes=6 * SECOND), seen.append) as lease:
            await lease.over.wait()
            return lease.cause

    assert await bench.run(agent()) is EndCause.EXPIRED
    assert [notice.cause for notice in seen] == [EndCause.EXPIRED]
    await bench.until(lambda: not bench.leases() and not bench.requests())


async def test_a_revocation_comes_with_its_grace(bench: Bench) -> None:
    seen = list[RevokeNotice]()

    async def agent() -> EndCause | None:
        async with plane(bench) as one, one.lease(Option(gpus=2, same_node=True), seen.append) as lease:
            bench.maintain(lease.devices[0].node)
            await lease.revoked.wait()
            assert lease.live
            await lease.over.wait()
            with pytest.raises(LeaseOver):
                _ = lease.fence
            return lease.cause

    assert await bench.run(agent()) is EndCause.MAINTENANCE
    (notice,) = seen
    assert notice.cause is EndCause.MAINTENANCE and 0 < notice.left.total_seconds() <= GRACE_MS / 1000
    await bench.until(lambda: not bench.leases() and not bench.requests())


async def test_leases_of_an_earlier_process_are_adopted_or_returned(bench: Bench) -> None:
    async def agents() -> None:
        earlier = plane(bench)
        await earlier.__aenter__()
        held = await earlier.negotiate(Option(gpus=2, minutes=5))
        for task in earlier._tasks._loops:
            # As if it was killed.
            task.cancel()
        async with plane(bench, adopt=True) as next_one:
            while not next_one.leases:
                await bench.broker.clock.sleep(50)
            (lease,) = next_one.leases
            assert (lease.id, lease.fence) == (held.id, held.fence)
            for task in next_one._tasks._loops:
                task.cancel()
            next_one._leases.clear()
        async with plane(bench):
            while bench.leases() or bench.requests():
                await bench.broker.clock.sleep(50)

    await bench.run(agents())
