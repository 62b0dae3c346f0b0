# SPDX-License-Identifier: Apache-2.0
"""What agents ask for that cannot be, and what they must not do."""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.types import Answer, LeaseAlternative
from dovetail.core.model import Maintenance
from dovetail.core.reasons import Reason
from tests.core.bargaining.market import MINUTE, Market, nodes


def test_an_impossible_alternative_has_its_reason_and_another_one_is_offered() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.ask("r", LeaseAlternative(count=1024), firm=True)
    assert market.states["r"][1] is not None and market.states["r"][1].reason is Reason.GANG_TOO_LARGE
    market.ask("s", LeaseAlternative(count=1024), LeaseAlternative(count=2))
    assert market.offers["s"][0].alternative.count == 2


def test_a_lease_that_is_taken_back_is_not_renewed_and_ends_at_its_deadline_whatever_runs_in_it() -> None:
    market = Market(*nodes(1))
    market.plane(grace_ms=MINUTE)
    market.ask("r", LeaseAlternative(count=8, duration_ms=10 * MINUTE), firm=True)
    market.pod("p", "r", 8)
    market.wait(8 * MINUTE)
    (node,) = nodes(1)
    market.step(ev.NodeChanged(replace(node, maintenance=Maintenance("Evict", market.now_ms))))
    market.wait(MINUTE // 2)
    assert market.revoked["r"].revocation.cause == "NodeMaintenance"
    market.act("r", "renew", market.now_ms + 5 * MINUTE)
    assert market.refused["r"] == "it is being taken back"
    market.pod("q", "r", 1)
    market.wait(MINUTE)
    assert market.ended == {"r": "NodeMaintenance"} and "p" not in market.state.workloads.pods
    assert "q" not in market.bound


def test_the_offer_of_another_agent_cannot_be_answered() -> None:
    market = Market(*nodes(2))
    market.plane("a")
    market.plane("b")
    market.ask("mine", plane="a")
    market.ask("theirs", plane="b")
    stolen = Answer(market.offers["theirs"][0].id, "accept")
    request = market.requests["mine"]
    market.step(ev.LeaseRequestChanged(replace(request, answer=stolen)))
    assert not market.leases and "theirs" in market.offers
    assert market.states["mine"][1] is not None and market.states["mine"][1].reason is Reason.OFFER_GONE
