# SPDX-License-Identifier: Apache-2.0
"""Nothing that an agent reads has names of other agents, of their requests or of jobs."""

from __future__ import annotations

import pytest

from dovetail.core.bargaining.types import Plane as PlaneRecord
from dovetail.plane import (
    AgentRequest,
    FakeBroker,
    OfferRound,
    Option,
    Plane,
    RenewalRefused,
    RevokeNotice,
    ServiceClass,
)
from dovetail.plane.fake import QUEUE

MINUTE = 60_000


def firm(gpus: int, minutes: float, service: ServiceClass = ServiceClass.BURST) -> AgentRequest:
    return AgentRequest(options=(Option(gpus=gpus, minutes=minutes, service=service),), firm=True, name="hidden")


async def test_offers_name_none() -> None:
    broker = FakeBroker({"n0": 8})
    async with Plane(broker, "secret/tenant") as other, Plane(broker, "team/a") as plane:
        await broker.run(other.negotiate(firm(6, 20)))
        asked = AgentRequest(options=(Option(gpus=8), Option(gpus=2)))
        async with plane.opened(asked) as negotiation:
            await negotiation.put()
            found = await broker.run(negotiation.turn())
            assert isinstance(found, OfferRound) and len(found.offers) == 2
            for offer in found.offers:
                assert offer.why and not {"secret", "tenant", "hidden"} & set(offer.why.replace("/", " ").split())


async def test_a_refused_renewal_names_none() -> None:
    broker = FakeBroker({"n0": 8})
    async with Plane(broker, "secret/tenant") as other, Plane(broker, "team/a") as plane:
        lease = await broker.run(plane.negotiate(firm(4, 20)))
        async with other.opened(firm(8, 20)) as waiting:
            await waiting.put()
            await broker.advance(15 * MINUTE)
            with pytest.raises(RenewalRefused) as refused:
                await broker.run(lease.renew(20))
        assert "reserved" in str(refused.value) and "hidden" not in str(refused.value)


async def test_a_revocation_names_none() -> None:
    guaranteed = PlaneRecord("secret/tenant", QUEUE, guarantee=(("gpu", 8000),))
    broker = FakeBroker({"n0": 8}, planes=[guaranteed])
    notices: list[RevokeNotice] = []
    async with Plane(broker, "team/a") as plane, Plane(broker, "secret/tenant") as other:
        await broker.run(plane.negotiate(firm(8, 60), on_revoke=notices.append))
        async with other.opened(firm(8, 20, ServiceClass.GUARANTEED)) as waiting:
            await waiting.put()
            await broker.advance(MINUTE)
        (notice,) = notices
        assert notice.cause == "Reclaimed" and "another workload" in notice.message
