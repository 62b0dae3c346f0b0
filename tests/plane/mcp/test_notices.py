# SPDX-License-Identifier: Apache-2.0
"""What a model must hear without asking: a checkpoint now, in each answer until it is acknowledged or over."""

from __future__ import annotations

from typing import Any

from dovetail.core.bargaining.types import EndCause
from dovetail.plane.mcp.answers import ToolAnswer
from dovetail.plane.mcp.notices import MOST_NOTICES, MOST_SHOWN, LeaseWarnings
from dovetail.plane.mcp.tools import leases_now
from tests.plane.mcp.model import MINUTE, SECOND, model


def notices_of(answer: ToolAnswer) -> list[dict[str, Any]]:
    """The notices of an answer; its text begins with as many lines."""
    found: Any = answer.content.get("notices", [])
    lines = answer.text.split("\n")[: len(found)]
    assert all(line.startswith(("CHECKPOINT NOW: ", "LEASE OVER: ")) for line in lines)
    return list(found)


async def test_a_revocation_is_in_each_answer_until_it_is_acknowledged() -> None:
    heard: list[None] = []
    async with model(8, changed=lambda: heard.append(None)) as one:
        lease = await one.granted(gpus=4, minutes=60)
        assert heard == [] and notices_of(await one.call("leases")) == []
        one.broker.maintain("n0")
        await one.broker.advance(SECOND)
        assert len(heard) == 1
        for tool, arguments in [("leases", {}), ("why", {"request": "r1"}), ("nope", {}), ("ask", {})]:
            answer = await one.call(tool, **arguments)
            (notice,) = notices_of(answer)
            assert (notice["kind"], notice["lease"], notice["cause"]) == ("checkpoint", lease, "NodeMaintenance")
            assert 50 < notice["seconds_left"] <= 60 and "save a checkpoint now" in answer.text.split("\n")[0]
        assert notices_of(leases_now(one.session))
        found = await one.call("leases", acknowledge=[lease])
        assert notices_of(found) == [] and found.content["leases"][0]["revoked"]["cause"] == "NodeMaintenance"  # type: ignore[index]
        await one.broker.advance(MINUTE)
        assert len(heard) == 2
        (over,) = notices_of(await one.call("leases"))
        assert (over["kind"], over["lease"], over["cause"]) == ("over", lease, "NodeMaintenance")
        assert notices_of(await one.call("leases")) == []


async def test_the_end_of_the_term_is_a_notice_and_a_renewal_ends_it() -> None:
    async with model(8) as one:
        lease = await one.granted(gpus=4, minutes=30)
        await one.broker.advance(29 * MINUTE + SECOND)
        (notice,) = notices_of(await one.call("leases"))
        assert notice["cause"] == "Expired" and "renew" in notice["action"]
        assert notices_of(await one.call("renew", lease=lease, minutes=20)) == []
        await one.broker.advance(19 * MINUTE + SECOND)
        # A new deadline is a new notice.
        assert [one["seconds_left"] for one in notices_of(await one.call("leases"))] == [59]
        await one.broker.advance(MINUTE)
        assert [one["kind"] for one in notices_of(await one.call("leases"))] == ["over"]


async def test_a_lease_that_is_returned_leaves_no_notice() -> None:
    async with model(8) as one:
        lease = await one.granted(gpus=4, minutes=60)
        one.broker.maintain("n0")
        await one.broker.advance(SECOND)
        assert notices_of(await one.call("give_back", lease=lease)) == []
        await one.broker.advance(2 * MINUTE)
        assert notices_of(await one.call("leases")) == []


async def test_a_lease_is_watched_after_its_request_is_closed() -> None:
    async with model(8) as one:
        await one.works("ask", options=[{"gpus": 4, "minutes": 30}])
        request = one.session._requests["r1"]
        request.accept("r1.1")
        while not one.session.plane.leases:
            await one.broker.advance(1)
        await request.close()
        assert (await one.works("offers", request="r1"))["state"] == "held"
        one.broker.lose("n0")
        await one.broker.advance(SECOND)
        assert [notice["kind"] for notice in notices_of(await one.call("leases"))] == ["checkpoint"]
        await one.broker.advance(MINUTE)
        assert [notice["kind"] for notice in notices_of(await one.call("leases"))] == ["over"]


def test_the_next_deadlines_come_first_and_their_number_is_bounded() -> None:
    warnings = LeaseWarnings(lambda: None)
    for number in range(2 * MOST_NOTICES):
        warnings.over(f"r{number}", EndCause.EXPIRED)
    assert len(warnings.open) == MOST_SHOWN
    found = 0
    while shown := warnings.shown():
        found += len(shown)
    assert found == MOST_NOTICES
