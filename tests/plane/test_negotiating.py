# SPDX-License-Identifier: Apache-2.0
"""An agent that negotiates with the broker: offers, counter-offers, later starts, and why it waits."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from dovetail.plane import (
    Accept,
    AgentRequest,
    CounterOffer,
    DeadlineAware,
    Decline,
    FakeBroker,
    FakeFault,
    FaultKind,
    KeepWaiting,
    NotGranted,
    OfferRound,
    Option,
    Plane,
    ServiceClass,
)
from dovetail.plane.policies import Move
from dovetail.plane.waiting import NEVER_MS

MINUTE = 60_000


async def occupied(broker: FakeBroker, gpus: int, minutes: float) -> Plane:
    """Another agent holds so many GPUs."""
    other = Plane(broker, "other/o")
    await other.__aenter__()
    await broker.run(other.negotiate(AgentRequest(options=(Option(gpus=gpus, minutes=minutes),), firm=True)))
    return other


async def test_the_second_option_is_offered_where_the_first_does_not_fit() -> None:
    broker = FakeBroker({"n0": 8})
    other = await occupied(broker, 5, 20)
    async with Plane(broker, "team/a") as plane:
        lease = await broker.run(plane.negotiate([Option(gpus=8, same_node=True), Option(gpus=2)]))
        assert lease.granted.count == 2
    await other.__aexit__(None, None, None)


async def test_the_later_offer_is_waited_for() -> None:
    broker = FakeBroker({"n0": 8})
    other = await occupied(broker, 5, 20)
    begun_ms = broker.clock.now_ms()

    def later(table: OfferRound) -> Move:
        return Accept(table.offers[-1].id)

    async with Plane(broker, "team/a") as plane:
        lease = await broker.run(plane.negotiate([Option(gpus=8, same_node=True), Option(gpus=2)], later))
        assert lease.granted.count == 8 and broker.clock.now_ms() - begun_ms == 20 * MINUTE
    await other.__aexit__(None, None, None)


async def test_a_counter_offer_is_granted() -> None:
    broker = FakeBroker({"n0": 8})

    def smaller(table: OfferRound) -> Move:
        if table.rounds:
            return Accept(table.offers[0].id)
        return CounterOffer(Option(gpus=3, minutes=5).alternative(table.now_ms))

    async with Plane(broker, "team/a") as plane:
        lease = await broker.run(plane.negotiate(Option(gpus=6), smaller))
        assert (lease.granted.count, lease.granted.duration_ms) == (3, 5 * MINUTE)


async def test_a_refused_counter_offer_comes_back_with_the_reason() -> None:
    broker, refused = FakeBroker({"n0": 8}), list[str]()

    def greedy(table: OfferRound) -> Move:
        if table.refused:
            refused.append(table.refused)
            return Accept(table.offers[0].id)
        return CounterOffer(Option(gpus=7).alternative(table.now_ms))

    async with Plane(broker, "team/a") as plane:
        lease = await broker.run(plane.negotiate(Option(gpus=6), greedy))
        assert lease.granted.count == 6 and "more devices" in refused[0]


async def test_declining_ends_the_negotiation_and_frees_what_was_held() -> None:
    broker = FakeBroker({"n0": 8})
    async with Plane(broker, "team/a") as plane:
        with pytest.raises(NotGranted, match="too small"):
            await broker.run(plane.negotiate(Option(gpus=6), lambda _: Decline("too small")))
        await broker.advance(1000)
        assert broker.requests == ()


async def test_keeping_waiting_costs_a_back_off_that_doubles() -> None:
    broker, times = FakeBroker(), list[int]()

    def patient(table: OfferRound) -> Move:
        times.append(table.now_ms)
        return KeepWaiting() if len(times) < 4 else Accept(table.offers[0].id)

    async with Plane(broker, "team/a") as plane:
        await broker.run(plane.negotiate(Option(), patient))
    assert [b - a for a, b in pairwise(times)] == [1000, 2000, 4000]


async def test_a_request_is_withdrawn_after_its_time_with_the_reason() -> None:
    broker = FakeBroker({"n0": 8})
    other = await occupied(broker, 8, 60)
    async with Plane(broker, "team/a") as plane:
        begun_ms = broker.clock.now_ms()
        asked = AgentRequest(options=(Option(gpus=4),), within_minutes=5)
        with pytest.raises(NotGranted, match=r"not granted in time: It waits: .* at the latest"):
            await broker.run(plane.negotiate(asked))
        assert broker.clock.now_ms() - begun_ms == 5 * MINUTE
    await other.__aexit__(None, None, None)


async def test_why_is_one_sentence_with_the_time_and_without_names_of_others() -> None:
    broker = FakeBroker({"n0": 8})
    other = await occupied(broker, 8, 20)
    async with Plane(broker, "team/a") as plane:
        asked = AgentRequest(options=(Option(gpus=8, same_node=True),), name="train")
        task = asyncio.create_task(plane.negotiate(asked))
        await broker.advance(5 * MINUTE)
        why = await plane.why(asked)
        assert why.startswith("It waits: ") and why.endswith("it starts in 15 min at the latest.")
        assert "other" not in why
        await broker.run(asyncio.wait_for(task, None))
        assert (await plane.why("train")).startswith("The lease train is granted")
        assert await plane.why("nothing") == "No request nothing is open."
    await other.__aexit__(None, None, None)


async def test_deadline_aware_gets_the_work_done_in_time() -> None:
    broker = FakeBroker({"n0": 8})
    other = await occupied(broker, 6, 20)
    async with Plane(broker, "team/a") as plane:
        now_ms = broker.clock.now_ms()
        policy = DeadlineAware(work_ms=80 * MINUTE, deadline_ms=now_ms + 40 * MINUTE)
        options = [Option(gpus=8, same_node=True, minutes=40), Option(gpus=1, minutes=40)]
        lease = await broker.run(plane.negotiate(options, policy))
        done_ms = broker.clock.now_ms() + policy.needs_ms(lease.granted.count)
        assert done_ms <= policy.deadline_ms and done_ms <= lease.end_ms
    await other.__aexit__(None, None, None)


async def test_a_firm_request_needs_no_policy() -> None:
    broker = FakeBroker()

    def never(table: OfferRound) -> Move:
        raise AssertionError("no offer is made")

    async with Plane(broker, "team/a") as plane:
        asked = AgentRequest(options=(Option(gpus=2, service=ServiceClass.SCAVENGER),), firm=True)
        lease = await broker.run(plane.negotiate(asked, never))
        assert lease.granted.service is ServiceClass.SCAVENGER


async def test_several_requests_of_one_plane_are_granted_one_after_the_other() -> None:
    broker = FakeBroker({"n0": 8})
    async with Plane(broker, "team/a") as plane:

        async def all_of_them() -> list[int]:
            leases = await asyncio.gather(*[plane.negotiate(Option(gpus=2)) for _ in range(4)])
            return [device.gpu for lease in leases for device in lease.devices]

        assert sorted(await broker.run(all_of_them())) == list(range(8))


async def test_a_request_is_negotiated_by_its_own_moves_and_withdrawn_in_the_end() -> None:
    broker = FakeBroker({"n0": 8})
    other = await occupied(broker, 5, 20)
    async with Plane(broker, "team/a") as plane:

        async def bargain() -> tuple[int, int]:
            asked = AgentRequest(options=(Option(gpus=8, same_node=True), Option(gpus=2)))
            async with plane.opened(asked) as negotiation:
                with pytest.raises(ValueError, match="nothing to answer"):
                    await negotiation.answer(KeepWaiting())
                await negotiation.put()
                first = await negotiation.turn()
                assert isinstance(first, OfferRound)
                await negotiation.answer(CounterOffer(Option(gpus=1, minutes=5).alternative(first.now_ms)))
                second = await negotiation.turn()
                assert isinstance(second, OfferRound)
            return first.rounds, second.rounds

        assert await broker.run(bargain()) == (0, 1)
        await broker.advance(1)
        assert all(one.startswith("other/") for one in broker.requests)
        assert not plane.leases
    await other.__aexit__(None, None, None)


async def test_a_grant_that_comes_while_the_request_is_withdrawn_is_returned() -> None:
    broker = FakeBroker({"n0": 8})
    delays = {"news": 500, "withdraw": 1000}
    async with Plane(broker, "team/a") as plane:
        async with plane.opened(AgentRequest(options=(Option(gpus=4),))) as negotiation:
            await negotiation.put()
            found = await broker.run(negotiation.turn())
            assert isinstance(found, OfferRound)
            broker.faults = lambda call: FakeFault(FaultKind.DELAYED, delays[call]) if call in delays else None
            await negotiation.answer(Accept(found.offers[0].id))
        await broker.advance(3000)
        assert "withdraw" in broker.calls and not broker.leases


async def test_a_policy_that_is_cancelled_with_the_grant_returns_the_lease() -> None:
    broker = FakeBroker({"n0": 8})
    async with Plane(broker, "team/a") as plane:
        broker.faults = lambda call: FakeFault(FaultKind.DELAYED, 500) if call == "news" else None
        task = asyncio.ensure_future(plane.negotiate(AgentRequest(options=(Option(gpus=4),), firm=True)))
        time = asyncio.ensure_future(broker.advance(1000))
        assert await plane.until(lambda: plane.leases or None, NEVER_MS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await time
        await broker.advance(2000)
        assert not broker.leases and not plane.leases


async def test_offers_are_there_until_they_are_answered_or_gone() -> None:
    broker = FakeBroker({"n0": 8})
    async with Plane(broker, "team/a") as plane, plane.opened(AgentRequest(options=(Option(gpus=4),))) as negotiation:
        assert negotiation.offers is None
        await negotiation.put()
        found = await broker.run(negotiation.turn())
        assert isinstance(found, OfferRound) and negotiation.offers == found
        await broker.advance(found.until_ms - found.now_ms)
        assert negotiation.offers is None
        found = await broker.run(negotiation.turn())
        assert isinstance(found, OfferRound)
        await negotiation.answer(KeepWaiting())
        assert negotiation.offers is None
